"""Chat templates in the ways of the families: short, and with what theirs make use of."""

from __future__ import annotations

LLAMA2 = """\
{%- if messages[0].role == 'system' -%}
{%- set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' -%}
{%- set turns = messages[1:] -%}
{%- else -%}{%- set system = '' -%}{%- set turns = messages -%}{%- endif -%}
{%- for turn in turns -%}
{%- if (turn.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('roles must take turns') }}
{%- endif -%}
{%- set content = system + turn.content if loop.first else turn.content -%}
{%- if turn.role == 'user' -%}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- else -%}{{ ' ' + content | trim + ' ' + eos_token }}{%- endif -%}
{%- endfor -%}
"""

LLAMA3 = """\
{{- bos_token }}
{%- if not date is defined %}{% set date = strftime_now('%d %b %Y') %}{% endif %}
{%- macro head(role) %}<|start_header_id|>{{ role }}<|end_header_id|>\\n\\n{% endmacro %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}{%- set system = '' %}{%- endif %}
{{- head('system') }}Today: {{ date[:3] }}\\n
{%- if tools is not none %}{% for tool in tools %}{{ tool | tojson(indent=4) }}\\n{% endfor %}{% endif %}
{{- system }}<|eot_id|>
{%- for message in messages %}
    {%- if message.tool_calls is defined %}
        {%- if message.tool_calls | length != 1 %}{{ raise_exception('one call only') }}{% endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- head('assistant') }}{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|eot_id|>
    {%- elif message.role == 'tool' or message.role == 'ipython' %}
        {{- head('ipython') }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}{{ message.content }}{% endif %}<|eot_id|>
    {%- else %}
        {{- head(message.role) ~ message.content | trim ~ '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ head('assistant') }}{% endif %}
"""  # noqa: E501

MISTRAL = """\
{%- set ns = namespace(index=0, last=-1) -%}
{%- for m in messages if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endfor -%}
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{%- if tools and ns.index == ns.last -%}
[AVAILABLE_TOOLS] [
{%- for tool in tools -%}
{"type": "function", "function": {
{%- for key, value in tool.function.items() if key != 'return' -%}
"{{ key }}": {{ '"' + value + '"' if value is string else value | tojson }}{{ ', ' if not loop.last }}
{%- endfor -%}
}}{{ ', ' if not loop.last else ']' }}
{%- endfor -%}
[/AVAILABLE_TOOLS]
{%- endif -%}
{%- set ns.index = ns.index + 1 -%}
[INST] {{ message.content }}[/INST]
{%- elif message.tool_calls is defined and message.tool_calls is not none -%}
[TOOL_CALLS] [
{%- for call in message.tool_calls -%}
{%- if not call.id is defined or call.id | length != 9 -%}{{ raise_exception('ids of 9') }}{%- endif -%}
{{ (call.function | tojson)[:-1] }}, "id": "{{ call.id }}"}{{ ', ' if not loop.last else ']' + eos_token }}
{%- endfor -%}
{%- elif message.role == 'tool' -%}
[TOOL_RESULTS] {"content": {{ message.content | string }}, "call_id": "{{ message.tool_call_id }}"}[/TOOL_RESULTS]
{%- elif message.role == 'assistant' -%}
{{ ' ' ~ message.content | trim ~ eos_token }}
{%- else -%}{{ raise_exception('no role ' + message.role) }}{%- endif -%}
{%- endfor -%}
"""  # noqa: E501

QWEN3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}{{ messages[0].content + '\\n' if messages[0].role == 'system' }}<tools>
    {%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(is_open=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = messages | length - 1 - loop.index0 %}
    {%- if ns.is_open and message.role == 'user' and not message.content.startswith('<tool_response>') %}
        {%- set ns.is_open = false %}{% set ns.last = index %}{% break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}{% set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last %}{{ '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}
        {%- generation %}{{ content }}{% endgeneration %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + content.replace('\\r\\n', '\\n') + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- else %}{{ '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""  # noqa: E501

PHI3 = """\
{% for message in messages %}
{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}
{% elif message['role'] in ['user', 'assistant'] %}{{'<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n'}}
{% endif %}{% endfor %}
{{ '<|assistant|>\\n' if add_generation_prompt else eos_token }}
"""  # noqa: E501

GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] ~ '\\n\\n' %}{% set loop_messages = messages[1:] %}
{%- else %}{% set first = '' %}{% set loop_messages = messages %}{% endif %}
{%- for message in loop_messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('user and model take turns') }}{% endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\\n' + (first if loop.first else '') }}
{%- if message['content'] is string %}{{ message['content'] | trim }}
{%- elif message['content'] is iterable %}{% for item in message['content'] %}{{ item['text'] | trim }}{% endfor %}
{%- endif %}{{ '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
"""  # noqa: E501

FAMILY_TEMPLATES = {
    "llama 2": LLAMA2,
    "llama 3": LLAMA3,
    "mistral": MISTRAL,
    "qwen 3": QWEN3,
    "phi 3": PHI3,
    "gemma": GEMMA,
}
