"""`runner report --merge`: the newest run of each backend on one machine and matrix, in one table and one page."""
