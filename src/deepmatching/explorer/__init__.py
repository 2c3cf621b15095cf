"""The explorer in the browser: a small server, a page of plain HTML, CSS and JavaScript, and its export as one file.

``deepmatching explore`` starts it. Starlette and uvicorn, the extra ``explore``, are imported by ``serving`` only: a
page is exported without them.
"""
