"""The explorer: a local web page on which a DEQ and its shallow network move together.

`state` and `query_text` turn what a person chose into a link and back, `explorer_data`, `uploads`,
`computing` and `cost` make the numbers, `drawings` the pictures and `python_code` the code.  Only
the modules that end in ``_page`` know Streamlit.
"""
