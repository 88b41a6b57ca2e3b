"""Reports: from run folders to tables, figures, findings and one HTML page. Imports no jax.

Modules, in the order in which the data pass them:
  scoring      how runs are scored, and how the scores are shown
  read         a store.record.Record -> the rows of a run
  contents     which runs had the same data
  factors      the fields that tell kinds of runs apart
  studies      Study, a set of comparable runs; means over seeds
  task_studies the transfer to the last task
  notes        what a reader of a study must know about its runs
  collect      all run folders -> studies and notes
  sizes        parameters, experts and members of a run
  tables       a study -> Markdown tables
  task_tables  a study of tasks -> its metrics
  trade_offs   Pareto fronts, and the price of compute at which each kind of run is best
  ablation     what the parts of a learner are worth -> Markdown tables
  comparisons  two kinds of runs -> mean difference and confidence interval
  findings     a study -> sentences about waiting times and growth
  drawing      colours, labels and axes that the figures share
  panels       what the panels and the lines of a figure show
  fronts       the figure of the Pareto fronts
  figures      a study -> matplotlib figures
  task_panels  what the panels of a stream of tasks show
  task_fronts, task_memory, task_graph, task_modules, task_matrix    its figures, one each
  task_figures a study of tasks -> all of them, with captions
  blocks       the tables and lists of a study
  parts        tables, lists and pictures: the parts of a report
  page         parts -> HTML
  write        studies -> the files of a report
"""
