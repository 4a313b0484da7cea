"""The formats of keys, tokens and passwords that `masking` looks for, as a table. Pure.

A pattern is tried only where one of its literals occurs, because a search for a literal is much faster. Every pattern
takes time linear in the length of the text: a token never starts directly after a character of its alphabet, and
repetitions are possessive or bounded, never nested. Prefixes and lengths follow the issuers' documentation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class SecretFormat:
    """One kind of secret. If a match has the group `secret`, only this group is masked; otherwise, the whole match is.

    With `at_literal`, a match starts at one of the literals. If a pattern ignores case, its literals are in lower case.
    `masking.looks_secret` checks the matches of rows that are not `strict`. `check` returns whether a match has valid
    check digits.
    """

    kind: str
    literals: tuple[str, ...]
    expression: str
    strict: bool = True
    at_literal: bool = True
    check: Callable[[str], bool] | None = None

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled on first use, because most texts contain no literal, and compiling all patterns takes 10 ms."""
        return re.compile(self.expression)

    @property
    def ignores_case(self) -> bool:
        return self.expression.startswith("(?i)")

    def is_in(self, text: str, literals: Iterable[str]) -> bool:
        """Return whether the pattern matches in `text`. `literals` are the pattern's literals that occur in `text`.

        >>> next(one for one in FORMATS if one.kind == "npm_token").is_in("npm_install is no token", ["npm_"])
        False
        """
        if not self.at_literal:
            return self.pattern.search(text) is not None
        searched = fold_case(text) if self.ignores_case else text
        for literal in literals:
            found = searched.find(literal)
            while found >= 0:
                if self.pattern.match(text, found):
                    return True
                found = searched.find(literal, found + 1)
        return False


def fold_case(text: str) -> str:
    """Convert `text` to lower case as `re.IGNORECASE` does, keeping every character's position."""
    if not text.isascii():
        text = text.replace("ſ", "s").replace("ı", "i").replace("İ", "i")
    return text.lower()


# A token must not start inside a word, except after an escaped line end in JSON.
_WORD = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
_RUN = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt]))"
_PASSWORD_WORDS = r"(?:pass(?:wor[dt]|wd|phrase|code)|pwd|kennwort|contrase[nñ]a|wachtwoord)"
_PASSWORD_LITERALS = ("pass", "pwd", "kennwort", "contrase", "wachtwoord")
_KEY_WORDS = (
    r"(?:secret(?:[_-]?(?:access)?[_-]?key)?|api[_-]?key|apikey|access[_-]?key(?:[_-]?id)?|account[_-]?key|private[_-]?key"
    r"|(?:client|app|shared|signing)[_-]?secret|(?:auth|access|refresh|session|bearer)?[_-]?token|credentials?)"
)
_ASSIGNED = r"[\"'`]?\]?[ \t]{0,3}(?::=|=>|==?|:)[ \t]{0,3}\\?"
_ARMOUR = r"[A-Za-z0-9+/=\s:,.()<>@\\]"
_VALUE = r"(?:(?P<quote>[\"'`])(?P<quoted>[^\"'`\n]{3,512}+)|(?P<bare>[^\s\"'`,;<>|]{4,512}+))"


def _token(kind: str, prefixes: str, rest: str, *, start: str = _WORD) -> SecretFormat:
    literals = tuple(prefixes.split())
    return SecretFormat(kind, literals, f"{start}(?:{'|'.join(map(re.escape, literals))}){rest}")


def _after(kind: str, prefixes: str, secret: str) -> SecretFormat:
    """Return the format of a secret that follows one of the prefixes. The prefixes themselves are not masked."""
    return _token(kind, prefixes, f"(?P<secret>{secret})", start="")


def _loose(kind: str, literals: tuple[str, ...], pattern: str) -> SecretFormat:
    """Return a format that may also match code and prose."""
    return SecretFormat(kind, literals, pattern, strict=False)


FORMATS: tuple[SecretFormat, ...] = (
    SecretFormat(
        "private_key",
        ("-----BEGIN ",),
        # Python before 3.11.5 mishandles possessive groups that contain a look-ahead or an alternation (gh-106052).
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        rf"(?:{_ARMOUR}*+(?:-(?!----){_ARMOUR}*+)*-----END [A-Z0-9 ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----"
        r"|(?:\s*+(?:\\[nr]\s*+)*+[A-Za-z0-9+/=]{16,}+)*)",
    ),
    _token("jwt", "eyJ", r"[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+){1,3}+", start=_RUN),
    _token("github_token", "ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9]{30,255}+"),
    _token("github_token", "github_pat_", r"[A-Za-z0-9_]{40,255}+", start=_RUN),
    _token(
        "gitlab_token",
        "glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glimt- glagent- gloas-",
        r"[A-Za-z0-9_.-]{16,255}+",
        start=_RUN,
    ),
    _token("aws_access_key", "AKIA ASIA ABIA ACCA", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _token("google_api_key", "AIza", r"[A-Za-z0-9_-]{35,64}+", start=_RUN),
    _token("google_oauth", "ya29. GOCSPX-", r"[A-Za-z0-9_-]{20,1024}+", start=_RUN),
    _token("slack_token", "xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-", r"[A-Za-z0-9-]{10,255}+", start=_RUN),
    _after("slack_webhook", "hooks.slack.com/services/", r"[A-Za-z0-9_/-]{20,120}+"),
    _after("discord_webhook", "/api/webhooks/", r"[0-9]{15,22}+/[A-Za-z0-9_-]{40,120}+"),
    _token("stripe_key", "sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_ whsec_", r"[A-Za-z0-9]{16,255}+"),
    _token("anthropic_key", "sk-ant-", r"[A-Za-z0-9_-]{20,255}+", start=_RUN),
    _token("openai_key", "sk-proj- sk-svcacct- sk-admin- sk-or-v1-", r"[A-Za-z0-9_-]{20,255}+", start=_RUN),
    _token("openai_key", "sk-", r"(?=[A-Za-z]*+[0-9])[A-Za-z0-9]{20,255}+", start=_RUN),
    _token("huggingface_token", "hf_", r"(?=[a-z]*+[A-Z0-9])[A-Za-z0-9]{30,64}+"),
    _token("npm_token", "npm_", r"[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    _token("pypi_token", "pypi-AgE", r"[A-Za-z0-9_-]{50,1024}+", start=_RUN),
    _token("sendgrid_key", "SG.", r"[A-Za-z0-9_-]{16,32}+\.[A-Za-z0-9_-]{32,64}+", start=_RUN),
    _token("twilio_key", "SK", r"[0-9a-f]{32}(?![A-Za-z0-9])"),
    _token("mailgun_key", "key-", r"[0-9a-f]{32}(?![A-Za-z0-9])", start=_RUN),
    _token("digitalocean_token", "dop_v1_ doo_v1_ dor_v1_", r"[0-9a-f]{64}"),
    _token("shopify_token", "shpat_ shpca_ shppa_ shpss_", r"[0-9a-fA-F]{32}"),
    _token("databricks_token", "dapi", r"[0-9a-f]{32}(?:-[0-9])?"),
    SecretFormat("telegram_token", (":AA",), r"(?<![0-9])[0-9]{8,10}:AA[A-Za-z0-9_-]{32,36}+", at_literal=False),
    _token("grafana_token", "glsa_ glc_", r"[A-Za-z0-9+/=_]{30,255}+", start=_RUN),
    _token("linear_key", "lin_api_ lin_oauth_", r"[A-Za-z0-9]{32,64}+"),
    _token("notion_token", "ntn_", r"[A-Za-z0-9]{40,60}+"),
    _token("notion_token", "secret_", r"(?=[A-Za-z]*+[0-9])[A-Za-z0-9]{40,60}+"),
    _token("vault_token", "hvs. hvb.", r"[A-Za-z0-9_-]{24,255}+", start=_RUN),
    _token("docker_token", "dckr_pat_ dckr_oat_", r"[A-Za-z0-9_-]{24,64}+", start=_RUN),
    _token("atlassian_token", "ATATT3", r"[A-Za-z0-9_=-]{50,255}+", start=_RUN),
    _token("age_key", "AGE-SECRET-KEY-1", r"[0-9A-Z]{58}"),
    _token("groq_key", "gsk_", r"[A-Za-z0-9]{40,64}+"),
    _token("xai_key", "xai-", r"[A-Za-z0-9]{60,100}+", start=_RUN),
    _token("perplexity_key", "pplx-", r"[A-Za-z0-9]{40,64}+", start=_RUN),
    _token("replicate_token", "r8_", r"[A-Za-z0-9]{36,44}+"),
    _token("newrelic_key", "NRAK-", r"[A-Z0-9]{27}", start=_RUN),
    _token("figma_token", "figd_", r"[A-Za-z0-9_-]{30,80}+", start=_RUN),
    _token("supabase_key", "sbp_ sb_secret_", r"[A-Za-z0-9_]{30,80}+", start=_RUN),
    _token("postman_key", "PMAK-", r"[0-9a-f]{24}-[0-9a-f]{34}", start=_RUN),
    _token("sentry_token", "sntrys_ sntryu_", r"[A-Za-z0-9+/=_-]{40,512}+"),
    _token("airtable_token", "pat", r"[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    _token("doppler_token", "dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit.", r"[A-Za-z0-9_.-]{40,100}+", start=_RUN),
    _token("netlify_token", "nfp_", r"[A-Za-z0-9]{30,64}+"),
    _after("azure_key", "Key= key=", r"[A-Za-z0-9+/]{40,128}+={1,2}"),
    SecretFormat(
        "url_signature",
        ("sig=", "x-amz-signature=", "x-goog-signature="),
        r"(?i)(?<=[?&])(?:sig|x-amz-signature|x-goog-signature)=(?P<secret>[A-Za-z0-9%+/=_-]{24,512}+)",
    ),
    _loose("url_password", ("://",), r"://[^\s:/@\"'<>?#]{0,128}+:(?P<secret>[^\s/\"'<>?]{1,128})@(?=[A-Za-z0-9\[_-])"),
    _loose(
        "authorization",
        ("authorization", "bearer", "basic"),
        r"(?i)\b(?:bearer|basic|authorization[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:token|apikey|digest)?)[ \t]{1,3}"
        r"(?P<secret>[A-Za-z0-9._~+/=-]{12,4096}+)",
    ),
    _loose("password", _PASSWORD_LITERALS, rf"(?i)(?P<name>{_PASSWORD_WORDS}){_ASSIGNED}{_VALUE}"),
    _loose(
        "password",
        (*_PASSWORD_LITERALS, *(f"-{literal}" for literal in _PASSWORD_LITERALS)),
        rf"(?i)(?P<name>--?{_PASSWORD_WORDS}|{_PASSWORD_WORDS}[ \t]{{1,3}}(?:is|was|to|of|ist|war|lautet|est?))"
        rf"[ \t]{{1,3}}{_VALUE}",
    ),
    _loose(
        "password", ("-u", "--user"), rf"(?<![\w-])(?P<name>-u|--user)[ \t=]{{1,3}}[\"']?[^\s:\"'/@]{{1,64}}+:{_VALUE}"
    ),
    _loose(
        "password",
        ("sshpass", "redis-cli", "mysql"),
        rf"\b(?:sshpass|redis-cli|mysql(?:dump|admin)?)\b[^\n|;]{{0,100}}?[ \t]"
        rf"(?:(?P<name>-p|-a|--pass)[ \t]{{0,3}}){_VALUE}",
    ),
    _loose(
        "password",
        ("login",),
        rf"\b(?P<name>login)(?:\([ \t]{{0,3}}[\"'][^\"'\n]{{1,128}}+[\"'],[ \t]{{0,3}}"
        rf"|\s{{1,3}}[^\s\"']{{1,128}}+\s{{1,3}}password\s{{1,3}}){_VALUE}",
    ),
    _loose(
        "credential",
        ("secret", "token", "credential", "api", "access", "account", "private"),  # every match contains one
        rf"(?i)(?P<name>{_KEY_WORDS}){_ASSIGNED}{_VALUE}",
    ),
)
"""The formats in the order in which they are tried: formats that identify a service precede formats that are recognised
only by context.
"""

SECRET_FIELDS = frozenset(
    (
        *("password", "passwd", "passphrase", "passcode", "pwd", "dbpassword", "userpassword"),
        *("secret", "clientsecret", "appsecret", "apisecret", "sharedsecret", "signingsecret", "githubtoken"),
        *("apikey", "xapikey", "accesskey", "accountkey", "privatekey", "secretkey", "secretaccesskey"),
        *("accesstoken", "refreshtoken", "authtoken", "bearertoken", "idtoken", "sessiontoken"),
        *("authorization", "proxyauthorization", "setcookie"),
    )
)
"""The names, in lower case without `_` and `-`, of fields whose values are always secret."""
