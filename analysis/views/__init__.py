"""What is shown, as values: each table is made once from findings, and every output renders the same one."""
