"""The tables and figures of every report page as Jinja macros."""

MACROS = """\
{%- macro table(content, caption) -%}
<div class="scroll" tabindex="0" role="region" aria-label="{{ caption }}">
<table><caption class="hidden">{{ caption }}</caption>
<thead><tr>
{%- for column in content.columns %}<th scope="col"{% if loop.index0 in content.text_columns %} class="text"{% endif %}>
{{- column }}</th>{% endfor -%}
</tr></thead>
<tbody>
{%- for row in content.rows %}
<tr{% if not row[0][0] %} class="more"{% endif %}>
{%- for value, quiet in row %}<td{% if loop.index0 in content.text_columns %} class="text"{% endif %}>{{ value }}
{%- if quiet %} <small>{{ quiet }}</small>{% endif %}</td>{% endfor %}</tr>
{%- endfor %}
</tbody></table></div>
{%- endmacro -%}
{%- macro figure(item) -%}
<figure role="group" aria-label="{{ item.description }}">{{ item.svg }}
<details><summary>Numbers of this figure</summary>{{ table(item.table, item.description) }}</details></figure>
{%- endmacro -%}
"""
