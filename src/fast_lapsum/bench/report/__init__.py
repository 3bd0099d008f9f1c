"""The report: figures and one self-contained page, made from results files."""
