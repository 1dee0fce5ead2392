"""Every comparison of the project as one list of runs, with one store and one report."""
