"""The paper's benchmark, and sweeps over settings: from a table's name to runs, and from runs to the table.

    published    the paper's numbers, and the recipe and method of each
                 and the rule for targets at small scale
    plan, grid   the runs of a table or a grid
    folders      their folders, shared between tables
    estimate     what they will cost
    comparison   measured numbers beside the published ones
    sweep_report the effect of a setting, as a picture
    render       all of it on a terminal, in files and on a page

What is typed and printed while runs are in progress belongs to `cli`.
"""
