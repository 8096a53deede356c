"""Report: one self-contained HTML file from the results of a comparison, or of a study of scaling."""

from heddle.comparison.report.figures import short
from heddle.comparison.report.page import write_report
from heddle.comparison.report.scaling_page import write_scaling_report
