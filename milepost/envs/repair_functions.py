"""Small functions, all of them right: what `repair` breaks and asks to have mended. Their text is read, never their result
by a policy: the docstring says what a function does, the annotations from which values its tests are drawn.

Every function takes whatever its annotations allow, changes none of its arguments, and returns data that JSON has.
"""
# Written out step by step: a one-line function has no place for a bug.
# ruff: noqa: SIM110, RUF005

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# --- what tests are drawn from; `repair_tasks.DRAWN` says how -------------------------------------------------------------

Int = int
Count = int
Positive = int
Small = int
Few = int
Ints = list[int]
Ordered = list[int]
Word = str
Phrase = str
Brackets = str
Words = list[str]
Table = dict[str, int]
Nested = list[Any]


# --- arithmetic -----------------------------------------------------------------------------------------------------------


def clamp(x: Int, low: Int, width: Small) -> int:
    """x moved into the range from low to low + width"""
    if x < low:
        return low
    if x > low + width:
        return low + width
    return x


def sign(x: Int) -> int:
    """1 for a positive x, -1 for a negative one, else 0"""
    if x > 0:
        return 1
    if x < 0:
        return -1
    return 0


def greatest(a: Int, b: Int, c: Int) -> int:
    """the greatest of three numbers"""
    best = a
    if b > best:
        best = b
    if c > best:
        best = c
    return best


def factorial(n: Few) -> int:
    """the product of all numbers from 1 to n"""
    out = 1
    for k in range(2, n + 1):
        out *= k
    return out


def power(x: Int, k: Small) -> int:
    """x to the power of k"""
    out = 1
    for _ in range(k):
        out *= x
    return out


def digit_sum(n: Count) -> int:
    """the sum of the digits of n"""
    total = 0
    while n > 0:
        total += n % 10
        n //= 10
    return total


def gcd(a: Positive, b: Positive) -> int:
    """the greatest common divisor"""
    while b > 0:
        a, b = b, a % b
    return a


def is_prime(n: Positive) -> bool:
    """whether n is a prime number"""
    if n < 2:
        return False
    for k in range(2, n):
        if n % k == 0:
            return False
    return True


def divisors(n: Positive) -> list[int]:
    """all divisors of n, from 1 to n"""
    out = []
    for k in range(1, n + 1):
        if n % k == 0:
            out.append(k)
    return out


def halvings(n: Positive) -> int:
    """how many steps to 1: an even n is halved, an odd one becomes three times itself and 1"""
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n //= 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


def binary(n: Count) -> str:
    """n in binary digits; 0 is "0" """
    if n == 0:
        return "0"
    out = ""
    while n > 0:
        out = str(n % 2) + out
        n //= 2
    return out


# --- strings --------------------------------------------------------------------------------------------------------------


def count_vowels(s: Phrase) -> int:
    """how many of the letters are vowels"""
    total = 0
    for c in s:
        if c in "aeiou":
            total += 1
    return total


def is_palindrome(s: Word) -> bool:
    """whether s reads the same backwards"""
    for i in range(len(s) // 2):
        if s[i] != s[len(s) - 1 - i]:
            return False
    return True


def common_prefix(a: Word, b: Word) -> str:
    """what both words begin with"""
    out = ""
    for i in range(min(len(a), len(b))):
        if a[i] != b[i]:
            break
        out += a[i]
    return out


def longest_word(s: Phrase) -> str:
    """the longest word, the first one of several; "" if there is none"""
    best = ""
    for word in s.split():
        if len(word) > len(best):
            best = word
    return best


def reverse_words(s: Phrase) -> str:
    """the words in reverse order"""
    out: list[str] = []
    for word in s.split():
        out.insert(0, word)
    return " ".join(out)


def initials(s: Phrase) -> str:
    """the first letter of every word, as capitals with a point behind each"""
    out = ""
    for word in s.split():
        out += word[0].upper() + "."
    return out


def shift_letters(s: Phrase, k: Small) -> str:
    """every letter moved k places on in the alphabet, z followed by a; blanks stay"""
    out = ""
    for c in s:
        if c == " ":
            out += c
        else:
            out += chr((ord(c) - ord("a") + k) % 26 + ord("a"))
    return out


def run_lengths(s: Word) -> str:
    """every run of a letter as the letter and its length: "aab" gives "a2b1" """
    out = ""
    i = 0
    while i < len(s):
        k = i
        while k < len(s) and s[k] == s[i]:
            k += 1
        out += s[i] + str(k - i)
        i = k
    return out


def is_balanced(s: Brackets) -> bool:
    """whether every bracket that is opened is closed, and none before it was opened"""
    depth = 0
    for c in s:
        if c == "(":
            depth += 1
        else:
            depth -= 1
        if depth < 0:
            return False
    return depth == 0


def is_anagram(a: Word, b: Word) -> bool:
    """whether both words have the same letters, each as often"""
    if len(a) != len(b):
        return False
    for c in a:
        if a.count(c) != b.count(c):
            return False
    return True


# --- lists ----------------------------------------------------------------------------------------------------------------


def sum_even(xs: Ints) -> int:
    """the sum of the even numbers"""
    total = 0
    for x in xs:
        if x % 2 == 0:
            total += x
    return total


def count_above(xs: Ints, low: Int) -> int:
    """how many numbers are greater than low"""
    total = 0
    for x in xs:
        if x > low:
            total += 1
    return total


def running_sum(xs: Ints) -> list[int]:
    """the sum of the numbers so far, at every place"""
    out = []
    total = 0
    for x in xs:
        total += x
        out.append(total)
    return out


def unique(xs: Ints) -> list[int]:
    """the numbers without those that came before"""
    out = []
    for x in xs:
        if x not in out:
            out.append(x)
    return out


def rotate(xs: Ints, k: Small) -> list[int]:
    """the first k numbers moved to the end, round and round"""
    if len(xs) == 0:
        return []
    k = k % len(xs)
    return xs[k:] + xs[:k]


def is_sorted(xs: Ints) -> bool:
    """whether no number is less than the one before it"""
    for i in range(1, len(xs)):
        if xs[i] < xs[i - 1]:
            return False
    return True


def chunks(xs: Ints, k: Small) -> list[list[int]]:
    """the numbers in lists of k; the last may be shorter"""
    out = []
    for i in range(0, len(xs), k):
        out.append(xs[i : i + k])
    return out


def second_largest(xs: Ints) -> int | None:
    """the second largest of the different numbers, None if there are not two"""
    best = None
    second = None
    for x in xs:
        if best is None or x > best:
            second = best
            best = x
        elif x < best and (second is None or x > second):
            second = x
    return second


def merge(xs: Ordered, ys: Ordered) -> list[int]:
    """both ascending lists as one that is ascending"""
    out = []
    i = 0
    k = 0
    while i < len(xs) and k < len(ys):
        if xs[i] <= ys[k]:
            out.append(xs[i])
            i += 1
        else:
            out.append(ys[k])
            k += 1
    return out + xs[i:] + ys[k:]


def find_place(xs: Ordered, x: Int) -> int:
    """how many numbers of the ascending list are less than x"""
    low = 0
    high = len(xs)
    while low < high:
        middle = (low + high) // 2
        if xs[middle] < x:
            low = middle + 1
        else:
            high = middle
    return low


def longest_rise(xs: Ints) -> int:
    """the length of the longest stretch in which every number is greater than the one before"""
    best = 0
    length = 0
    for i in range(len(xs)):
        if i > 0 and xs[i] > xs[i - 1]:
            length += 1
        else:
            length = 1
        best = max(best, length)
    return best


def pairs_with_sum(xs: Ints, x: Int) -> int:
    """how many pairs of places have numbers whose sum is x"""
    total = 0
    for i in range(len(xs)):
        for k in range(i + 1, len(xs)):
            if xs[i] + xs[k] == x:
                total += 1
    return total


# --- dicts ----------------------------------------------------------------------------------------------------------------


def count_words(words: Words) -> dict[str, int]:
    """how often each word is there"""
    out: dict[str, int] = {}
    for word in words:
        out[word] = out.get(word, 0) + 1
    return out


def total_price(words: Words, table: Table) -> int:
    """the sum of the prices of all words; a word without a price costs nothing"""
    total = 0
    for word in words:
        if word in table:
            total += table[word]
    return total


def add_tables(a: Table, b: Table) -> dict[str, int]:
    """both tables as one, values of the same key added"""
    out = dict(a)
    for key in b:
        out[key] = out.get(key, 0) + b[key]
    return out


def keys_above(table: Table, low: Int) -> list[str]:
    """the keys whose value is greater than low, in alphabetical order"""
    out = []
    for key in sorted(table):
        if table[key] > low:
            out.append(key)
    return out


def group_words(words: Words) -> dict[str, list[str]]:
    """the words by their first letter, each group in their order"""
    out: dict[str, list[str]] = {}
    for word in words:
        if word[0] not in out:
            out[word[0]] = []
        out[word[0]].append(word)
    return out


def best_key(table: Table) -> str:
    """the key of the largest value, the first in the alphabet of several; "" if there is none"""
    best = ""
    for key in sorted(table):
        if best == "" or table[key] > table[best]:
            best = key
    return best


# --- recursion ------------------------------------------------------------------------------------------------------------


def fibonacci(n: Few) -> int:
    """the n-th Fibonacci number; the first two are 1"""
    if n <= 2:
        return 1
    return fibonacci(n - 1) + fibonacci(n - 2)


def choose(n: Small, k: Small) -> int:
    """in how many ways k of n things can be chosen"""
    if k > n:
        return 0
    if k == 0 or k == n:
        return 1
    return choose(n - 1, k - 1) + choose(n - 1, k)


def depth(nested: Nested) -> int:
    """how deep the lists are nested; a flat list has the depth 1"""
    best = 0
    for x in nested:
        if isinstance(x, list):
            best = max(best, depth(x))
    return best + 1


def sum_nested(nested: Nested) -> int:
    """the sum of all numbers, however deep they stand"""
    total = 0
    for x in nested:
        if isinstance(x, list):
            total += sum_nested(x)
        else:
            total += x
    return total


def flatten(nested: Nested) -> list[int]:
    """all numbers in one list, in their order"""
    out = []
    for x in nested:
        if isinstance(x, list):
            out += flatten(x)
        else:
            out.append(x)
    return out


def replace_all(s: Word, old: Word, new: Word) -> str:
    """s with every letter that old begins with replaced by new"""
    if s == "" or old == "":
        return s
    if s[0] == old[0]:
        return new + replace_all(s[1:], old, new)
    return s[0] + replace_all(s[1:], old, new)


def count_down(n: Small, k: Small) -> list[int]:
    """n, then always k less, as long as it is positive"""
    if n <= 0:
        return []
    return [n] + count_down(n - k, k)


def subset_sum(xs: Ints, x: Int) -> bool:
    """whether some of the numbers, or none, have the sum x"""
    if len(xs) == 0:
        return x == 0
    return subset_sum(xs[1:], x) or subset_sum(xs[1:], x - xs[0])


FAMILIES: dict[str, tuple[Callable[..., Any], ...]] = {
    "arithmetic": (clamp, sign, greatest, factorial, power, digit_sum, gcd, is_prime, divisors, halvings, binary),
    "strings": (count_vowels, is_palindrome, common_prefix, longest_word, reverse_words, initials, shift_letters,
                run_lengths, is_balanced, is_anagram),
    "lists": (sum_even, count_above, running_sum, unique, rotate, is_sorted, chunks, second_largest, merge, find_place,
              longest_rise, pairs_with_sum),
    "dicts": (count_words, total_price, add_tables, keys_above, group_words, best_key),
    "recursion": (fibonacci, choose, depth, sum_nested, flatten, replace_all, count_down, subset_sum),
}  # fmt: skip
