r"""Compress: any teacher into a small, exportable student."""
