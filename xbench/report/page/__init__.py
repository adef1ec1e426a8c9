"""Shell of the HTML page: its parts, template, style and scripts."""
