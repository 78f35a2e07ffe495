"""Fuzzing: every parser of what users and cells write, with inputs from its grammar and mutations of them (`ci/fuzz`).

target.py      what a target is, and the list of them
targets/       one module per target
documents.py   strategies that change valid documents: JSON values, texts, bytes
engine.py      runs one target, minimises what fails and stores it in corpus/
report.py      the table, the summary and the branch coverage of all targets
corpus/        inputs that showed a defect; test_corpus.py replays them
"""
