//! Binary search that starts from a guess.

/// The first position below `len` where `holds` is true, else `len`. `holds` must be false up to
/// some position and true from there. Cheap when that position is near `guess`.
pub fn first_where(len: usize, guess: usize, holds: impl Fn(usize) -> bool) -> usize {
    // Known: not `holds(low - 1)` (or low is 0), and `holds(high)` (or high is len).
    let (mut low, mut high) = (0, len);
    let mut step = 1;
    let guess = guess.min(len);
    if guess < len && !holds(guess) {
        low = guess + 1;
        while high - low > step && !holds(low + step - 1) {
            low += step;
            step *= 2;
        }
        high = high.min(low + step);
    } else {
        high = guess;
        while high - low >= step && holds(high - step) {
            high -= step;
            step *= 2;
        }
        low = high.saturating_sub(step);
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn first_where_finds_the_turn(len in 0usize..200, turn in 0usize..220, guess in 0usize..250) {
            prop_assert_eq!(first_where(len, guess, |position| position >= turn), turn.min(len));
        }
    }

    #[test]
    fn a_good_guess_costs_a_few_looks_at_any_length() {
        let looks = std::cell::Cell::new(0);
        for guess in [999_999, 1_000_000, 1_000_001] {
            looks.set(0);
            let found = first_where(usize::MAX, guess, |position| {
                looks.set(looks.get() + 1);
                position >= 1_000_000
            });
            assert_eq!(found, 1_000_000);
            assert!(looks.get() <= 4, "{}", looks.get());
        }
    }
}
