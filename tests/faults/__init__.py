"""The fault suite: plants one fault in a real run of xbench, and says what must hold afterwards.

    workload.py      the small model that goes wrong on demand
    observation.py   what is seen of a run, as plain data; journals and records are read here
    traces.py        processes and things that a case left on the machine, told from those of runs beside it
    verdict.py       `Expected`, and the pure function that compares it with an `Observation`
    harness.py       starts xbench, follows its journals, plants the fault, observes
    faults.py        the faults that come from outside: signals, links, disks
    case.py          `Case` and what the families share
    family_*.py      the table of cases, one file a family
    draws.py         random draws over fabric, phase, target and fault
    suite.py         all cases by name, one run of one of them, and the file that keeps results

A test of the verdict itself is in test_verdict.py. test_faults.py runs a seeded share of the cases, or all of them.
"""
