"""Words that say how a sentence is built and not what it is about. Negations are not among them.

Russian, Hindi and Arabic ones are recognised by their letters. A text in Latin letters counts as another language if
two or more of its stop words are not English, and twice as many as are only English: titles and names such as "La Vie
en rose" occur in English texts.
"""

from __future__ import annotations

from collections.abc import Iterable

_ENGLISH = """
    a about after all also am an and any are as at be because been before being but by can could did do does
    doing for from had has have having he her here him his how i if in into is it its just me my no nor not now
    of off on once or our out over own she should so some such than that the their them then there these they
    this those to too us was we were what when where which while who whom why will with would you your
"""
_OF_OWN_SCRIPTS = """
    и в во на с со к ко у о об от до из за по при для как что кто где когда куда откуда почему зачем какой какая какое
    какие каков какова каком какую сколько это этот эта эти тот та те я ты он она оно мы вы они мой моя мое моё мои мою
    моего моей твой наш наша наше ваш его ее её ей ему их им мне меня нас вас свой был была было были есть быть бы же ли
    а но или так уже все

    का की के को में से पर ने है हैं था थी थे हो और या यह वह ये वे मैं हम तुम आप मेरा मेरी मेरे हमारा हमारी हमारे
    क्या कौन कहाँ कब क्यों कैसे कितना कितनी कितने किस किसने किसे कि जो तो भी ही एक सा सी

    في من إلى على عن مع هذا هذه ذلك التي الذي هو هي هم أنا نحن أنت ما ماذا متى أين كيف لماذا كم أي بأي هل كان كانت
    يكون أو ثم قد لأن أن إن
"""
_LATIN = {
    "de": """
        der die das den dem des ein eine einen einem einer eines und oder ist sind war waren wird werden wurde
        hat habe haben hatte ich du er sie es wir ihr mich dich uns mein meine meinen meiner dein deine sein
        seine ihre unser unsere was wie wo wer wen wem wann warum wieso welche welcher welches welchen welchem
        in im an am auf aus bei mit nach von vom zu zum zur fur uber unter um so auch noch schon dass weil wenn
        als man sich viel
    """,
    "es": """
        el la los las un una unos unas de del al a en con por para que cual cuales quien quienes como cuando
        donde cuanto cuanta cuantos es son era fue esta estan ser estar hay se lo le les me te nos mi mis tu tus
        su sus y o este esto ese esa eso ya muy mas si ha han tiene
    """,
    "fr": """
        le la les un une des du de l d au aux en dans sur sous avec pour par que qui quoi quel quelle quels
        quelles comment quand ou pourquoi combien est sont etait a ont ai avons il elle ils elles je tu nous
        vous on me te se mon ma mes ton ta tes son sa ses notre nos votre ce cet cette ces c s j m qu et y plus
    """,
    "it": """
        il lo la i gli le un uno una di del della dei delle dello a al alla da dal dalla in nel nella con su per
        che chi cosa quale quali come quando dove perche quanto e sono era ha ho hanno abbiamo si mi ti ci vi
        mio mia miei tuo tua suo sua nostro questo questa quello
    """,
    "nl": """
        de het een van en is zijn was waren wordt werden in op aan met voor bij naar uit om te dat die dit deze
        wie wat waar wanneer waarom hoe welke ik jij je hij zij we wij ze mijn jouw ons onze heeft heb hebben
        had er ook nog
    """,
    "pt": """
        o a os as um uma de do da dos das em na nos nas com por para que qual quais quem como quando onde quanto
        porque e sao foi era esta estao ser ha tem se me te meu minha seu sua nosso isso este ao
    """,
}

STOP_WORDS = frozenset(_ENGLISH.split())
_ALWAYS = STOP_WORDS.union(_OF_OWN_SCRIPTS.split())
_LANGUAGES = tuple(frozenset(words.split()) for words in _LATIN.values())
_LEAST_FOREIGN = 2


def stop_words_of(words: Iterable[str]) -> frozenset[str]:
    """Return the stop words, folded, of the language that a text with the folded `words` is taken for."""
    return _ALWAYS | foreign_stop_words(words)


def foreign_stop_words(words: Iterable[str]) -> frozenset[str]:
    """Return the stop words of a language in Latin letters; none where the folded `words` are taken for English."""
    said = set(words)
    language = max(_LANGUAGES, key=lambda stops: len(stops & said))
    own, english = len(language & said - STOP_WORDS), len(STOP_WORDS & said - language)
    return language if own >= max(_LEAST_FOREIGN, 2 * english) else frozenset()
