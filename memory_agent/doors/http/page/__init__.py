"""The page: the user's memory in a browser, at `/page/`.

`index.html` loads `app.js`; `vendor` contains the libraries of others, unchanged. There is no build step.
"""
