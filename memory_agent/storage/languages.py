"""Detects the language of a text, and selects its stop words and stemmer.

Languages in Latin script are recognised by their stop words. A text must contain at least two of the language's stop
words that are not English stop words. They must also be at least twice as many as the text's English stop words that
the language lacks, because English texts contain foreign names. Languages with their own script need no detection
(decision 0015). Negations are not stop words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

STOP_WORDS = frozenset(
    """
    a about after all also am an and any are as at be because been before being but by can could did do does
    doing for from had has have having he her here him his how i if in into is it its just me my no nor not now
    of off on once or our out over own she should so some such than that the their them then there these they
    this those to too us was we were what when where which while who whom why will with would you your
    """.split()  # noqa: SIM905
)
_OF_OWN_SCRIPTS = """
    и в во на с со к ко у о об от до из за по при для как что кто где когда куда откуда почему зачем какой какая какое
    какие каков какова каком какую сколько это этот эта эти этого этом тот та те то того том я ты он она оно мы вы они
    мой моя мое моё мои мою моего моей твой наш наша наше ваш его ее её ей ему их им мне меня нас вас вам свой был была
    было были быть есть бы же ли а но или если так уже все всё всех будет может можно чтобы только также который
    которая которое которые этой через более очень

    και το την του που θα από με η αν στο τησ σε σασ ένα μια τον τα ο δεν στην τισ των οι τη έναν τουσ στον στη στισ για
    είναι ήταν έχει έχω μου σου μασ τι ποιο ποια ποιοσ πότε πού πώσ γιατί ωσ

    का की के को में से पर ने है हैं था थी थे हो और या यह वह ये वे मैं हम तुम आप मेरा मेरी मेरे हमारा हमारी हमारे
    क्या कौन कहाँ कब क्यों कैसे कितना कितनी कितने किस किसने किसे कि जो तो भी ही एक सा सी

    في من إلى على عن مع هذا هذه ذلك التي الذي هو هي هم أنا نحن أنت ما ماذا متى أين كيف لماذا كم أي بأي هل كان كانت
    يكون أو ثم قد لأن أن إن
"""
_LATIN = {  # on a tie, the first language wins; each list begins with the most common words
    "es": """
        el la los las un una uno unos unas de del al a en con por para que cual cuales quien quienes como cuando
        donde cuanto cuanta cuantos es son era fue esta estan ser estar hay se lo le les me te nos mi mis tu tus
        su sus y o este esto ese esa eso ya muy mas si ha han tiene puede tambien pero cada desde sobre estos
        entre todos solo otros durante antes despues aun siempre tener hacer estas todo asi nunca
    """,
    "de": """
        der die das den dem des ein eine einen einem einer eines und oder ist sind war waren wird werden wurde
        hat habe haben hatte ich du er sie es wir ihr mich dich uns mein meine meinen meiner dein deine sein
        seine ihre unser unsere was wie wo wer wen wem wann warum wieso welche welcher welches welchen welchem
        in im an am auf aus bei mit nach von vom zu zum zur fur uber unter um so auch noch schon dass weil wenn
        als man sich viel konnen kann diese dies nur durch aber dieser dieses diesem mussen muss da gibt mehr
        sehr ihnen heißt mir dir ihm ihn gegen ohne nicht kein keine
    """,
    "fr": """
        le la les une un des du de l d au aux en dans sur sous avec pour par que qui quoi quel quelle quels
        quelles comment quand ou pourquoi combien est sont etait a ont ai avons il elle ils elles je tu nous
        vous on me te se mon ma mes ton ta tes son sa ses notre nos votre ce cet cette ces c s j m qu et y plus
        peut etre mais meme comme donc aussi tous cela tout ainsi leur dont si fait avant entre depuis toutes
        apres doit etc sera soit deux pas jamais
    """,
    "pt": """
        o a os as um uma de do da dos das em na nos nas com por para que qual quais quem como quando onde quanto
        porque e sao foi era esta estao ser ha tem se me te meu minha seu sua nosso isso este ao ou pode mas
        tambem voce apenas ele ela pelo pela mesmo cada ja esse muito todos qualquer entao assim sobre durante
        ainda outros depois isto foram nao
    """,
    "it": """
        il lo la i gli le un uno una di del della dei delle dello a al alla da dal dalla in nel nella con su per
        che chi cosa quale quali come quando dove perche quanto e sono era ha ho hanno abbiamo si mi ti ci vi
        mio mia miei tuo tua suo sua nostro questo questa quello essere puo piu anche ma ad cui questi loro dell
        solo stato molto dopo due tutti ogni cosi tra quindi non
    """,
    "nl": """
        de het een van en is zijn was waren wordt werden in op aan met voor bij naar uit om te dat die dit deze
        wie wat waar wanneer waarom hoe welke ik jij je hij zij we wij ze mijn jouw ons onze heeft heb hebben
        had er ook nog worden als kan zal kunt moet uw dan kunnen maar door zoals alle veel na omdat via zich
        dus zonder moeten tot zou meer andere of onder niet geen
    """,
    "pl": """
        i w z to jest na do sie sa ze dla aby lub przez jak on ona od tego ten ta za jako moze ale tym mozna
        tylko jego jej ma po rowniez ich tej co juz kiedy gdzie kto dlaczego ktory ktora ktore mam moj moja moje
        nasz mi mnie ja ty my był była było byc jaki jaka jakie o u wiele gdy wszystkie jesli poniewaz bardzo
        bedzie oraz wiec tych takze kazdy czesto niz podczas nich inne wiecej pod przy we byl byla bylo zostal
        czy byli moga nie
    """,
    "ro": """
        de in si pentru sa este care un o pe la va daca ca cu sau acest aceasta din se sunt ar ce pot fi au cum
        despre prin al dupa toate cand unde cine mai eu tu el ea noi mi meu mea ai am era fost lui lor poate
        multe astfel fie unei unui foarte alte doar nevoie cel cea dintre chiar asa fara avea fiecare ul ale ne
    """,
    "sv": """
        for att som och en ett ar av det pa till kan om har med du den de eller fran in detta finns andra alla
        nar denna vara dessa ocksa efter genom din upp vilket hur ha ska vi jag han hon min mitt mina mig vad
        vem var varfor vilken nagra mycket inte sig ni nagot flera olika sedan sa utan vid dig sin sitt sina
        deras
    """,
    "cs": """
        a je se na v s z k o pro to nebo ze do jako jsou by byt za ale ve si aby bude tento tato protoze pouze
        po jak tak pri mohou ma jeho jeji od nez co jejich jsem jste jsme vam mi me muj moje nas kdy kde kdo
        proc ktery ktera ktere byl byla bylo mate maji podle behem uz jen pres ten ta ty on ona kazdy pred mezi
        kdyz tim vice musi budou chcete dalsi neni take tyto tomto teto nimi prvni pokud ani ci nebyl nejsou
        vsak jeste tedy ho mu tu tom te
    """,
    "id": """
        yang untuk dan ini dengan dapat dari dalam di pada anda akan atau ke adalah jika oleh itu mereka hanya
        juga sebagai bahwa seperti karena telah sangat saya aku kamu dia kami kita apa siapa kapan mana mengapa
        bagaimana berapa sudah ada lain sebuah ketika banyak setiap sama saat tetapi setelah namun tersebut
        biasanya menjadi tentang baik selama menggunakan digunakan harus perlu hal cara lebih tidak bukan
    """,
    "tr": """
        bir ve bu icin olarak daha veya her de da olan sonra ancak ile gibi cok en ben sen biz siz benim bizim
        ne neden nasıl nerede kim hangi kac zaman mi mu mı mü var o ise ama kadar tum ilk birlikte kendi iki tam
        az gore oldugu sadece onu bunu biri ki hem olur yapılan zaten bazen hic hatta bazı diger iyi herhangi
        sey bunun onun icinde
    """,
    "hu": """
        a az es egy hogy nem is van volt ez azt ezt meg de ha mint csak mar aki ami amely hol mikor miert hogyan
        mi ki melyik en te o ti ok nekem vagyok lesz lehet vagy mert kell minden nagyon
    """,
    "da": """
        og en et er at af kan pa til som det den de hvis vil eller dette skal fra der har om blive ogsa være
        denne ved efter nar nogle kun alle andre dig disse hvor mere hvordan blev var hver deres jeg du han hun
        vi min mit mine hvad hvem hvornar hvorfor hvilken ikke sig
    """,
    "no": """
        og en et er at av kan pa til som det den de hvis vil eller dette skal fra der har om blir ogsa være
        denne ved etter nar noen kun alle andre deg disse hvor mer hvordan ble var hver deres jeg du han hun vi
        min mitt mine hva hvem hvorfor hvilken ikke seg opp noe enn mellom uten bruke slik sa ma ut dine enten
        fordi
    """,
    "fi": """
        ja on ei se etta joka mita mika kuka missa milloin miksi miten minun minulla mina sina han me te he oli
        olen ovat olla kun jos tai mutta myos tama taman nama niin kuin siita sen ne voi sita hanen meidan
    """,
    "ca": """
        el la els les un una de del dels al als en amb per que es i o si com quan on qui quin quina son era te
        hi ha aquest aquesta aquests aixo tambe pero mes ja jo tu ell nosaltres em et meu meva seu seva pot ser
        fer tot cada poden aquestes nomes altres despres sobre molt estan fins abans perque dins entre
    """,
}
STEMMERS = {
    "ca": "catalan",
    "cs": "czech",
    "da": "danish",
    "de": "german",
    "es": "spanish",
    "fi": "finnish",
    "fr": "french",
    "hu": "hungarian",
    "id": "indonesian",
    "it": "italian",
    "nl": "dutch",
    "no": "norwegian",
    "pl": "polish",
    "pt": "portuguese",
    "ro": "romanian",
    "sv": "swedish",
    "tr": "turkish",
}
"""The Snowball stemmer for each Latin-script language except English."""

_ALSO_ENGLISH = frozenset(
    """
    ad ai al apa biz care ci co com come comment con dan den die dig door due e em en era est et etc fi fur gore hat hi
    jo kim las los man mar met mia min mine mint o ok per plus pot pro solo son take ten till tim todo tom ton u ul v
    var ve via vice vid w war ya z
    """.split()  # noqa: SIM905
)
"""Words that also occur in English texts and programs with a different meaning, as in "Los Angeles" and "die"."""

_NEGATIONS = frozenset(
    """
    nicht kein keine pas jamais nunca nao non niet geen nie inte ikke ei nem neni nebyl nejsou ne tidak bukan
    """.split()  # noqa: SIM905
)
"""Words that are evidence of a language but are not stop words."""

_OF_LANGUAGES = {language: frozenset(words.split()) for language, words in _LATIN.items()}
_MOST_COMMON = {language: frozenset(words.split()[:14]) for language, words in _LATIN.items()}
_ALWAYS = STOP_WORDS.union(_OF_OWN_SCRIPTS.split())
_PAIRS = re.compile(r"[\u3040-\u309f\u30fc]{2}|[的了是吗呢吧啊].|.[的了是吗呢吧啊]")
"""Pairs of characters that are nearly always function words: two hiragana, or a Chinese particle and a character."""
_LEAST_FOREIGN = 2
_LEAST_SHARE = 1 / 12  # share of the distinct words; lower in source code
_READ_WORDS = 200
_FOREIGN = (
    frozenset(word for words in _OF_LANGUAGES.values() for word in words if len(word) > 1 or word in "eouvwz")
    - STOP_WORDS
    - {"os", "nos"}
)
"""Words that count as evidence of a language. Most single letters are excluded, because they are often parts of English
words, as in "John's". `os` is excluded because it is common in programs.
"""


def language_of(words: Iterable[str]) -> str:
    """Return the language of a text's first 200 folded words: a key of `STEMMERS`, or "" for English."""
    said = frozenset(islice(words, _READ_WORDS))
    foreign = said & _FOREIGN
    if len(foreign) < _LEAST_FOREIGN:
        return ""
    language = max(_LATIN, key=lambda one: len(_OF_LANGUAGES[one] & foreign) + len(_MOST_COMMON[one] & foreign))
    stops = _OF_LANGUAGES[language]
    own = stops & foreign
    least = max(_LEAST_FOREIGN, 2 * len(STOP_WORDS & said - stops), _LEAST_SHARE * len(said))
    return language if len(own) >= least and not own <= _ALSO_ENGLISH else ""


def stop_words_of(words: Iterable[str]) -> frozenset[str]:
    """Return the folded stop words for the language of a text with these folded `words`."""
    words = list(words)
    language = language_of(words)
    return _ALWAYS.union(_OF_LANGUAGES[language] - _NEGATIONS if language else (), filter(_PAIRS.fullmatch, words))
