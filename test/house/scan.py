"""Finds classes and functions in C++ that clang-format has laid out: enough of a parser for the checks of this
directory, and no more. It relies on that layout: a body's brace has a space before it, an initializer's has none."""

import dataclasses
import re

# Comments, literals and preprocessor lines become blanks; line breaks stay, so that line numbers do.
NOISE = re.compile(r'''
    //[^\n]* | /\*.*?\*/
  | R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"
  | "(?:\\.|[^"\\\n])*" | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'
  | ^[ \t]*\#(?:\\\n|[^\n])*
''', re.VERBOSE | re.DOTALL | re.MULTILINE)
CLASS = re.compile(r'^(?:class|struct|union)\b(.*)$', re.DOTALL)
ATTRIBUTE = re.compile(r'\[\[[^\]]*\]\]|\balignas\s*\((?:[^()]|\([^()]*\))*\)')
FUNCTION_NAME = re.compile(r'((?:~?\w+\s*::\s*)*(?:operator\s*(?:\(\)|[^\s\w(]+|\w+)|~?\w+))\s*\(')
NO_FUNCTION = re.compile(r'^(?:if|for|while|switch|catch|return|static_assert|decltype|noexcept|requires|sizeof)$')
TEST_MACRO = re.compile(r'^(?:TYPED_)?TEST(?:_[FP])?$')
NO_MEMBER = re.compile(
    r'^(?:using|typedef|friend|static|template|enum|static_assert|class|struct|union|extern|concept)\b')


@dataclasses.dataclass
class Entity:
    """A class or a function with a body: where it is, and where in the blanked text it begins and ends."""
    kind: str
    name: str
    scope: str
    first_line: int
    last_line: int = 0
    begin: int = 0
    body: int = 0
    end: int = 0
    members: int = 0

    @property
    def full_name(self):
        return f'{self.scope}::{self.name}' if self.scope else self.name

    @property
    def lines(self):
        return self.last_line - self.first_line + 1


def blank(text):
    return NOISE.sub(lambda match: re.sub(r'[^\n]', ' ', match[0]), text)


def without_templates(text):
    """Without what is between angle brackets. Comparisons have spaces around them."""
    out, depth = [], 0
    for at, letter in enumerate(text):
        if letter == '<' and at > 0 and (text[at - 1].isalnum() or text[at - 1] in '_>') and (
                at + 1 < len(text) and text[at + 1] not in ' =<'):
            depth += 1
        elif letter == '<' and depth:
            depth += 1
        elif letter == '>' and depth and text[at - 1] != '-':
            depth -= 1
        elif not depth:
            out.append(letter)
    return ''.join(out)


def strip_head(head):
    """What a statement begins with, without attributes, labels and `template <...>`."""
    head = ATTRIBUTE.sub(' ', head).strip()
    head = re.sub(r'^(?:(?:public|private|protected)\s*:\s*)+', '', head)
    while head.startswith('template'):
        depth = 0
        for at, letter in enumerate(head):
            depth += (letter == '<') - (letter == '>' and head[at - 1] != '-')
            if letter == '>' and depth == 0:
                break
        head = head[at + 1:].strip()
        head = re.sub(r'^requires\b[^{]*?(?=\b(?:class|struct|void|bool|auto|explicit|constexpr|inline)\b)', '', head)
    return head


def class_name(head):
    """The name of the class whose body comes after `head`, '' for one without a name, None when it is no class."""
    match = CLASS.match(head)
    if not match or '(' in without_templates(match[1]):
        return None
    words = re.sub(r'\bfinal\b', ' ', without_templates(match[1]).split(' : ')[0]).split()
    return words[0] if words else ''


def function_name(head):
    """The name of the function whose body comes after `head`, or None."""
    for match in FUNCTION_NAME.finditer(without_templates(head)):
        name = re.sub(r'\s', '', match[1])
        if TEST_MACRO.match(name):
            return ' '.join(head.split())
        if not NO_FUNCTION.match(name):
            return name
    return None


def data_members(statement):
    """How many data members a statement of a class's body declares."""
    statement = strip_head(re.sub(r'\{\}', ' ', statement))
    if not statement or NO_MEMBER.match(statement) or 'operator' in statement:
        return 0
    plain = re.sub(r'\[[^\[\]]*\]', ' ', without_templates(statement))
    declared = plain.split('=')[0]
    if '(' in declared and '(*' not in declared:
        return 0
    if not re.search(r'\w\W+\w', declared):
        return 0
    depth, count = 0, 1
    for letter in plain:
        depth += (letter in '({') - (letter in ')}')
        count += letter == ',' and depth == 0
    return count


def scan(text):
    """Classes and functions of one file, in the order of their ends. Also returns the blanked text."""
    code = blank(text)
    found, stack = [], []
    start, parens, line = 0, 0, 1
    for at, letter in enumerate(code):
        if letter == '\n':
            line += 1
        elif letter == '(':
            parens += 1
        elif letter == ')':
            parens -= 1
        elif letter == '{':
            outer = stack[-1] if stack else None
            entity = None
            if parens == 0 and (outer is None or outer[0] in ('namespace', 'class')):
                raw = code[start:at]
                head = strip_head(raw)
                begin = start + len(raw) - len(raw.lstrip())
                entity = classify(head, code, begin, at, stack)
            what = entity.kind if entity else 'other'
            stack.append((what, entity, start, parens))
            if what in ('namespace', 'class', 'function'):
                start = at + 1
            parens = 0
        elif letter == '}':
            if not stack:
                raise ValueError(f'line {line}: a brace too many')
            what, entity, old_start, parens = stack.pop()
            if entity:
                entity.last_line, entity.end = line, at + 1
                if what in ('class', 'function'):
                    found.append(entity)
            # The statement of an initializer goes on.
            start = at + 1 if what in ('namespace', 'class', 'function') else old_start
        elif letter == ';' and parens == 0 and (not stack or stack[-1][0] in ('namespace', 'class')):
            if stack and stack[-1][0] == 'class':
                # `struct A { ... } a;` declares a member, too.
                declared = re.fullmatch(r'\s*\w+\s*(?:=.*|\{.*\})?\s*', code[start:at], re.DOTALL)
                after_class = found and found[-1].kind == 'class' and found[-1].end == start
                stack[-1][1].members += bool(declared and after_class) or data_members(without_braces(code[start:at]))
            start = at + 1
    if stack:
        raise ValueError('a brace too few')
    return found, code


def without_braces(text):
    out, depth = [], 0
    for letter in text:
        depth -= letter == '}'
        if depth == 0 and letter not in '{}':
            out.append(letter)
        elif letter == '{' and depth == 0:
            out.append('{')
        elif letter == '}' and depth == 0:
            out.append('}')
        depth += letter == '{'
    return ''.join(out)


def classify(head, code, begin, at, stack):
    """What the brace at `at` opens, or None when it is neither a namespace nor a class nor a function."""
    scope = '::'.join(entity.name for what, entity, *_ in stack if what == 'class' and entity.name)
    label = re.match(r'\s*(?:public|private|protected)\s*:\s*', code[begin:at])
    begin += label.end() if label else 0
    line = code.count('\n', 0, begin) + 1
    if re.match(r'^(?:inline\s+)?namespace\b|^extern\b\s*$', head):
        return Entity('namespace', '', scope, line, begin=begin, body=at)
    name = class_name(head)
    if name is not None:
        return Entity('class', name, scope, line, begin=begin, body=at)
    if head.startswith('enum') or head.endswith('=') or code[at - 1] not in ' \n':
        return None
    if re.search(r'\brequires\s*(?:\([^()]*\))?\s*$', head) or re.match(r'^[^(]*[^=!<>]=[^=(]*$', head.split('(')[0]):
        return None
    name = function_name(head)
    return Entity('function', name, scope, line, begin=begin, body=at) if name else None
