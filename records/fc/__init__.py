"""The FC modes as data: what is asked, which combinations exist, and the evidence."""
