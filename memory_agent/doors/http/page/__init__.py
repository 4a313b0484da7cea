"""The page: the user's memory in a browser, at `/page/`.

`index.html` loads `app.js`; `vendor` contains unchanged third-party libraries. There is no build step.
"""
