"""The paper's benchmark, and sweeps over settings: from a table's name to runs, and from runs to the table.

    paper        the published tables: their numbers, and the runs of each
    grid         the runs of a grid, and folders that tables and grids share
    estimate     what runs will cost
    comparison   measured numbers beside the published ones, on a terminal, in files and on a page
    sweep_report the effect of a setting, as a picture
    tuning       the same number of trials for every method, with tune_report
    api          `fedacg.compare` and `fedacg.sweep`

What is typed and printed while runs are in progress belongs to `cli`.
"""
