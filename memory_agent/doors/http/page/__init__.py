"""The page: the user's memory in a browser, at `/page/`.

`files` serves its static files; `sessions` signs browsers in. `index.html` loads `app.js`; `vendor` contains the
libraries of others, unchanged. There is no build step.
"""
