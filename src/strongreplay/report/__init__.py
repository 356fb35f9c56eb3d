"""Report: records as tables, verdicts, figures and one HTML page. Nothing here imports torch.

May import: errors, metrics, runs (recipes and paper only), storage (records only).
Public: tables.group_records, verdicts.judge_all, figures.all_figures, page.build.
"""
