"""The explorer: a local web page on which a DEQ and its shallow network move together.

`state` and `page_state` turn what a person chose into a link and back, `explorer_data` and `shown`
make the numbers, `drawings` the pictures and `take_away` the files and the code.
"""
