"""Reports: from run folders to tables, figures, findings and one HTML page. Imports no jax.

Modules, in the order in which the data pass them:
  read          a store.record.Record -> the rows of a run, and how it is scored
  studies       Study, a set of comparable runs; its kinds of runs, their factors, names and sizes; means over seeds
  collect       all run folders -> studies, and notes that a reader must know
  statistics    means over seeds, their confidence intervals and tests; benchmarks/ uses them, too
  trade_offs    Pareto fronts, and the price of compute at which each kind of run is best
  tables        a study -> Markdown tables
  ablation      what the parts of a learner are worth -> Markdown tables
  findings      a study -> sentences about waiting times and growth
  cards         a study -> its headline, and short answers
  drawing       Plot, the description of a figure, and the function that draws it
  figures       a study -> Plots
  task_figures  a study of tasks -> Plots
  svg           a Plot -> HTML that fills the width of a page and shows values on hover
  page          studies -> the files of a report; page.html is the template of its page
"""
