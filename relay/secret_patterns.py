"""The formats of keys, tokens and passwords that `masking` looks for, as a table. Pure.

A pattern is tried only where one of its marks stands, because searching a text for a pattern costs a hundred times what
finding a word does. Every pattern is linear in the text: a token starts only where no character of its alphabet
precedes it, and repetitions are possessive or bounded, and never nested. Prefixes and lengths are those that the
issuers document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

_IGNORECASE = int(re.IGNORECASE)  # 1 us less for each string than with the enum


class SecretFormat(NamedTuple):
    """One kind of secret. Group `secret` of a match is masked, or the whole match without such a group.

    A text in which the pattern matches has a match that begins `at` one of the marks, or right `after` one, or
    `anywhere` in a text with a mark. The marks of a pattern that ignores case are in lower case.
    `masking.looks_secret` checks the matches of rows that are not `strict`, since the same words also occur in code.
    """

    kind: str
    marks: tuple[str, ...]
    pattern: re.Pattern[str]
    strict: bool = True
    begins: Literal["at", "after", "anywhere"] = "at"

    @property
    def ignores_case(self) -> bool:
        return bool(self.pattern.flags & _IGNORECASE)

    def is_in(self, text: str, marks: Iterable[str]) -> bool:
        """Return whether the pattern matches in `text`, none but these of whose marks occur in `text`.

        >>> next(one for one in FORMATS if one.kind == "npm_token").is_in("npm_install is no token", ["npm_"])
        False
        """
        if self.begins == "anywhere":
            return self.pattern.search(text) is not None
        searched = fold_case(text) if self.ignores_case else text
        for mark in marks:
            found = searched.find(mark)
            while found >= 0:
                if self.pattern.match(text, found + len(mark) if self.begins == "after" else found):
                    return True
                found = searched.find(mark, found + 1)
        return False


def fold_case(text: str) -> str:
    """Return `text` in lower case as `re.IGNORECASE` compares ASCII letters, with each character in its place."""
    if not text.isascii():
        text = text.replace("ſ", "s").replace("ı", "i").replace("İ", "i")
    return text.lower()


# Where a token may start: not inside a word, except after an escaped line end inside JSON.
_WORD = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
_RUN = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt]))"
_PASSWORD_WORDS = r"(?:pass(?:wor[dt]|wd|phrase|code)|pwd|kennwort|contrase[nñ]a|wachtwoord)"
_PASSWORD_MARKS = ("pass", "pwd", "kennwort", "contrase", "wachtwoord")
_PASSWORD_FLAGS = tuple("-" + mark for mark in _PASSWORD_MARKS)
_KEY_WORDS = (
    r"(?:secret(?:[_-]?(?:access)?[_-]?key)?|api[_-]?key|apikey|access[_-]?key(?:[_-]?id)?|account[_-]?key|private[_-]?key"
    r"|(?:client|app|shared|signing)[_-]?secret|(?:auth|access|refresh|session|bearer)?[_-]?token|credentials?)"
)
_ASSIGNED = r"[\"'`]?\]?[ \t]{0,3}(?::=|=>|==?|:)[ \t]{0,3}\\?"
_ARMOUR = r"[A-Za-z0-9+/=\s:,.()<>@\\]"
_VALUE = r"(?:(?P<quote>[\"'`])(?P<quoted>[^\"'`\n]{3,512}+)|(?P<bare>[^\s\"'`,;<>|]{4,512}+))"

_GITLAB = tuple(f"gl{part}-" for part in ("pat", "dt", "rt", "cbt", "ptt", "ft", "soat", "imt", "agent", "oas"))


def _token(
    kind: str,
    marks: tuple[str, ...] | str,
    body: str,
    *,
    before: str = _WORD,
    begins: Literal["at", "after", "anywhere"] = "at",
) -> SecretFormat:
    names = (marks,) if isinstance(marks, str) else marks
    return SecretFormat(kind, names, re.compile(before + body), begins=begins)


FORMATS: tuple[SecretFormat, ...] = (
    SecretFormat(
        "private_key",
        ("-----BEGIN ",),
        re.compile(
            # Python before 3.11.5 matches possessive groups with a look-ahead or a choice inside wrongly (gh-106052).
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
            rf"(?:{_ARMOUR}*+(?:-(?!----){_ARMOUR}*+)*-----END [A-Z0-9 ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----"
            r"|(?:\s*+(?:\\[nr]\s*+)*+[A-Za-z0-9+/=]{16,}+)*)"
        ),
    ),
    _token("jwt", "eyJ", r"eyJ[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+){1,3}+", before=_RUN),
    _token("github_token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"gh[pousr]_[A-Za-z0-9]{30,255}+"),
    _token("github_token", "github_pat_", r"github_pat_[A-Za-z0-9_]{40,255}+", before=_RUN),
    _token(
        "gitlab_token", _GITLAB, r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent|oas)-[A-Za-z0-9_.-]{16,255}+", before=_RUN
    ),
    _token("aws_access_key", ("AKIA", "ASIA", "ABIA", "ACCA"), r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    _token("google_api_key", "AIza", r"AIza[A-Za-z0-9_-]{35,64}+", before=_RUN),
    _token("google_oauth", ("ya29.", "GOCSPX-"), r"(?:ya29\.|GOCSPX-)[A-Za-z0-9_-]{20,1024}+", before=_RUN),
    _token("slack_token", ("xox", "xapp-"), r"(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{10,255}+", before=_RUN),
    _token(
        "slack_webhook",
        "hooks.slack.com/services/",
        r"(?<=hooks\.slack\.com/services/)[A-Za-z0-9_/-]{20,120}+",
        before="",
        begins="after",
    ),
    _token(
        "discord_webhook",
        "/api/webhooks/",
        r"(?<=/api/webhooks/)[0-9]{15,22}+/[A-Za-z0-9_-]{40,120}+",
        before="",
        begins="after",
    ),
    _token(
        "stripe_key",
        ("sk_live_", "sk_test_", "sk_prod_", "rk_live_", "rk_test_", "rk_prod_", "whsec_"),
        r"(?:[sr]k_(?:live|test|prod)|whsec)_[A-Za-z0-9]{16,255}+",
    ),
    _token("anthropic_key", "sk-ant-", r"sk-ant-[A-Za-z0-9_-]{20,255}+", before=_RUN),
    _token("openai_key", "sk-", r"sk-(?:proj|svcacct|admin|or-v1)-[A-Za-z0-9_-]{20,255}+", before=_RUN),
    _token("openai_key", "sk-", r"sk-(?=[A-Za-z]*+[0-9])[A-Za-z0-9]{20,255}+", before=_RUN),
    _token("huggingface_token", "hf_", r"hf_(?=[a-z]*+[A-Z0-9])[A-Za-z0-9]{30,64}+"),
    _token("npm_token", "npm_", r"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    _token("pypi_token", "pypi-", r"pypi-AgE[A-Za-z0-9_-]{50,1024}+", before=_RUN),
    _token("sendgrid_key", "SG.", r"SG\.[A-Za-z0-9_-]{16,32}+\.[A-Za-z0-9_-]{32,64}+", before=_RUN),
    _token("twilio_key", "SK", r"SK[0-9a-f]{32}(?![A-Za-z0-9])"),
    _token("mailgun_key", "key-", r"key-[0-9a-f]{32}(?![A-Za-z0-9])", before=_RUN),
    _token("digitalocean_token", ("dop_v1_", "doo_v1_", "dor_v1_"), r"do[opr]_v1_[0-9a-f]{64}"),
    _token("shopify_token", ("shpat", "shpca", "shppa", "shpss"), r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    _token("databricks_token", "dapi", r"dapi[0-9a-f]{32}(?:-[0-9])?"),
    _token("telegram_token", ":AA", r"(?<![0-9])[0-9]{8,10}:AA[A-Za-z0-9_-]{32,36}+", before="", begins="anywhere"),
    _token("grafana_token", ("glsa_", "glc_"), r"(?:glsa|glc)_[A-Za-z0-9+/=_]{30,255}+", before=_RUN),
    _token("linear_key", ("lin_api_", "lin_oauth_"), r"lin_(?:api|oauth)_[A-Za-z0-9]{32,64}+"),
    _token("notion_token", ("ntn_", "secret_"), r"(?:ntn_|secret_(?=[A-Za-z]*+[0-9]))[A-Za-z0-9]{40,60}+"),
    _token("vault_token", ("hvs.", "hvb."), r"hv[sb]\.[A-Za-z0-9_-]{24,255}+", before=_RUN),
    _token("docker_token", ("dckr_pat_", "dckr_oat_"), r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{24,64}+", before=_RUN),
    _token("atlassian_token", "ATATT3", r"ATATT3[A-Za-z0-9_=-]{50,255}+", before=_RUN),
    _token("age_key", "AGE-SECRET-KEY-", r"AGE-SECRET-KEY-1[0-9A-Z]{58}"),
    _token("groq_key", "gsk_", r"gsk_[A-Za-z0-9]{40,64}+"),
    _token("xai_key", "xai-", r"xai-[A-Za-z0-9]{60,100}+", before=_RUN),
    _token("perplexity_key", "pplx-", r"pplx-[A-Za-z0-9]{40,64}+", before=_RUN),
    _token("replicate_token", "r8_", r"r8_[A-Za-z0-9]{36,44}+"),
    _token("newrelic_key", "NRAK-", r"NRAK-[A-Z0-9]{27}", before=_RUN),
    _token("figma_token", "figd_", r"figd_[A-Za-z0-9_-]{30,80}+", before=_RUN),
    _token("supabase_key", ("sbp_", "sb_secret_"), r"(?:sbp|sb_secret)_[A-Za-z0-9_]{30,80}+", before=_RUN),
    _token("postman_key", "PMAK-", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}", before=_RUN),
    _token("sentry_token", ("sntrys_", "sntryu_"), r"sntry[su]_[A-Za-z0-9+/=_-]{40,512}+"),
    _token(
        "airtable_token", "pat", r"pat(?<![A-Za-z0-9]pat)[A-Za-z0-9]{14}\.[0-9a-f]{64}", before=""
    ),  # common letters
    _token("doppler_token", "dp.", r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9_.-]{40,100}+", before=_RUN),
    _token("netlify_token", "nfp_", r"nfp_[A-Za-z0-9]{30,64}+"),
    _token("azure_key", ("Key=", "key="), r"(?<=[kK]ey=)[A-Za-z0-9+/]{40,128}+={1,2}", before="", begins="after"),
    _token(
        "url_signature",
        ("sig=", "x-amz-signature=", "x-goog-signature="),
        r"(?i)(?<=[?&])(?:sig|x-amz-signature|x-goog-signature)="
        r"(?P<secret>[A-Za-z0-9%+/=_-]{24,512}+)",
        before="",
    ),
    SecretFormat(
        "url_password",
        ("://",),
        re.compile(r"://[^\s:/@\"'<>?#]{0,128}+:(?P<secret>[^\s/\"'<>?]{1,128})@(?=[A-Za-z0-9\[_-])"),
        strict=False,
    ),
    SecretFormat(
        "authorization",
        ("authorization", "bearer", "basic"),
        re.compile(
            r"(?i)\b(?:bearer|basic|authorization[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:token|apikey|digest)?)[ \t]{1,3}"
            r"(?P<secret>[A-Za-z0-9._~+/=-]{12,4096}+)"
        ),
        strict=False,
    ),
    SecretFormat(
        "password",
        _PASSWORD_MARKS,
        re.compile(rf"(?i)(?P<name>{_PASSWORD_WORDS}){_ASSIGNED}{_VALUE}"),
        strict=False,
    ),
    SecretFormat(
        "password",
        _PASSWORD_MARKS + _PASSWORD_FLAGS,
        re.compile(
            rf"(?i)(?P<name>--?{_PASSWORD_WORDS}|{_PASSWORD_WORDS}[ \t]{{1,3}}(?:is|was|to|of|ist|war|lautet|est?))"
            rf"[ \t]{{1,3}}{_VALUE}"
        ),
        strict=False,
    ),
    SecretFormat(
        "password",
        ("-u", "--user"),
        re.compile(rf"(?<![\w-])(?P<name>-u|--user)[ \t=]{{1,3}}[\"']?[^\s:\"'/@]{{1,64}}+:{_VALUE}"),
        strict=False,
    ),
    SecretFormat(
        "password",
        ("sshpass", "redis-cli", "mysql"),
        re.compile(
            rf"\b(?:sshpass|redis-cli|mysql(?:dump|admin)?)\b[^\n|;]{{0,100}}?[ \t]"
            rf"(?:(?P<name>-p|-a|--pass)[ \t]{{0,3}}){_VALUE}"
        ),
        strict=False,
    ),
    SecretFormat(
        "password",
        ("login",),
        re.compile(
            rf"\b(?P<name>login)(?:\([ \t]{{0,3}}[\"'][^\"'\n]{{1,128}}+[\"'],[ \t]{{0,3}}"
            rf"|\s{{1,3}}[^\s\"']{{1,128}}+\s{{1,3}}password\s{{1,3}}){_VALUE}"
        ),
        strict=False,
    ),
    SecretFormat(
        "credential",
        ("secret", "token", "credential", "api", "access", "account", "private"),  # a part of every match matches
        re.compile(rf"(?i)(?P<name>{_KEY_WORDS}){_ASSIGNED}{_VALUE}"),
        strict=False,
    ),
)
"""In the order of matching: formats that name their service first, then those that only their context tells."""

SECRET_FIELDS = frozenset(
    (
        *("password", "passwd", "passphrase", "passcode", "pwd", "dbpassword", "userpassword"),
        *("secret", "clientsecret", "appsecret", "apisecret", "sharedsecret", "signingsecret", "githubtoken"),
        *("apikey", "xapikey", "accesskey", "accountkey", "privatekey", "secretkey", "secretaccesskey"),
        *("accesstoken", "refreshtoken", "authtoken", "bearertoken", "idtoken", "sessiontoken"),
        *("authorization", "proxyauthorization", "setcookie"),
    )
)
"""Names of fields, in lower case without `_` and `-`, whose value is always a secret."""
