"""The FC modes as data: problems, rules, communication, traffic and proofs."""
