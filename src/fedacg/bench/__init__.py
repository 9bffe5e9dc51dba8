"""The paper's benchmark, and sweeps over settings: from a table's name to runs, and from runs to the table.

    published    the paper's numbers, and which recipe and method each is of
                 and the rule for targets at small scale
    plan, grid   the runs that a table or a grid asks for
    folders      their folders, shared between tables
    estimate     what they will cost
    comparison   what was measured beside what was published
    sweep_report what a setting does, as a picture
    render       all of it on a terminal, in files and on a page

What is typed and printed while runs go on is `cli`'s.
"""
