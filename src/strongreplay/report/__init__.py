"""Report: records as tables, verdicts, figures and one HTML page. Nothing here imports torch.

May import: errors, methods (table only), metrics, runs (recipes and paper only), storage (without torch).
Public: tables.group_records, verdicts.judge_all, figures.all_figures, page.build.
"""
