"""Report: one self-contained HTML file from the results of a comparison."""

from heddle.comparison.report.page import write_report
