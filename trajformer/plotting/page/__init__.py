"""The moving page: scenes and forecasts in one HTML file that plays in a browser, without network.

`encode.py` packs scenes, `palette.py` has the colors, and `build.py` assembles the file from
`source/`, plain JavaScript modules and style sheets without libraries.
"""
