"""The OpenAPI page: every route with its description; one HTML text that loads nothing from elsewhere."""

from typing import Any

from jinja2 import Environment

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }} {{ version }}: routes</title>
<style>
:root { color-scheme: light dark; font-family: system-ui, sans-serif; }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; line-height: 1.5; }
pre { overflow-x: auto; padding: .6rem; border: 1px solid #8888; border-radius: .4rem; }
h2 { border-top: 1px solid #8888; padding-top: 1rem; }
</style></head><body>
<h1>{{ title }} {{ version }}: routes</h1>
<p>The same as a file for tools: <a href="/openapi.json">openapi.json</a>. With a token, add
<code>-H "Authorization: Bearer $TOKEN"</code>.</p>
<pre>curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg' ADDRESS/predict?top=3
curl -F images=@one.jpg -F images=@two.jpg ADDRESS/predict</pre>
{% for route in routes %}
<h2><code>{{ route.verb }} {{ route.path }}</code></h2>
<p>{{ route.about }}</p>
{% if route.takes %}<p>Takes: {{ route.takes | join(", ") }}</p>{% endif %}
<ul>{% for status, text in route.answers %}<li><code>{{ status }}</code> {{ text }}</li>{% endfor %}</ul>
{% endfor %}
</body></html>"""


def render_docs(schema: dict[str, Any]) -> str:
    routes = [
        {
            "verb": verb.upper(),
            "path": path,
            "about": route.get("description", ""),
            "takes": list(route.get("requestBody", {}).get("content", {})),
            "answers": [(status, answer["description"]) for status, answer in route["responses"].items()],
        }
        for path, verbs in schema["paths"].items()
        for verb, route in verbs.items()
    ]
    template = Environment(autoescape=True).from_string(PAGE)
    return template.render(routes=routes, title=schema["info"]["title"], version=schema["info"]["version"])
