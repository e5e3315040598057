//! Where values lie along an axis, which of them are written beside it, and in what unit time is told. Logarithms are those with the same
//! bits on every host. It draws nothing.

/// Where values lie between an axis' two ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// From one value to another.
    Even {
        /// At the beginning.
        low: f64,
        /// At the end.
        high: f64,
    },
    /// From 0 to so many of something that is not divided.
    Counts {
        /// At the end.
        high: f64,
    },
    /// From one power of ten to another.
    Powers {
        /// The logarithm of the lowest value.
        low: i32,
        /// The logarithm of the highest.
        high: i32,
    },
}

/// The lowest value of a logarithmic axis: a millisecond.
const LEAST: f64 = 1e-3;
/// Values beside an axis at most: a page is not higher or wider than they need.
const TICKS_MAX: u32 = 64;

impl Scale {
    /// From 0 to a value.
    #[must_use]
    pub fn up_to(high: f64) -> Self {
        Self::Even { low: 0.0, high: if high.is_finite() && high > 0.0 { high } else { 1.0 } }
    }

    /// From 0 to so many.
    #[must_use]
    pub fn counts(high: f64) -> Self {
        Self::Counts { high: high.clamp(1.0, 1e15) }
    }

    /// From the power of ten that is not above a value to one that is not below another.
    #[must_use]
    pub fn powers(low: f64, high: f64) -> Self {
        let of = |value: f64| libm::log10(value.clamp(LEAST, 1e15));
        let low = of(low).floor() as i32;
        Self::Powers { low, high: (of(high).ceil() as i32).max(low + 1) }
    }

    /// From 0 at the beginning to 1 at the end; what is outside lies at the end that is nearer.
    #[must_use]
    pub fn place(self, value: f64) -> f64 {
        let share = match self {
            Self::Even { low, high } => (value - low) / (high - low).max(f64::MIN_POSITIVE),
            Self::Counts { high } => value / high,
            Self::Powers { low, high } => {
                (libm::log10(value.max(LEAST)) - f64::from(low)) / f64::from((high - low).max(1))
            }
        };
        if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
    }

    /// Values to write beside it: round ones, about so many of an even axis, and all powers of the other.
    #[must_use]
    pub fn ticks(self, about: usize) -> Vec<f64> {
        match self {
            Self::Even { low, high } => evenly(low, high, round((high - low) / about.max(1) as f64)),
            Self::Counts { high } => evenly(0.0, high, round(high / about.max(1) as f64).max(1.0)),
            Self::Powers { low, high } => (low..=high).map(|power| libm::pow(10.0, f64::from(power))).collect(),
        }
    }
}

/// The multiples of a distance. Multiplied and not added up, so that errors do not add up either.
fn evenly(low: f64, high: f64, every: f64) -> Vec<f64> {
    let (first, last) = ((low / every).ceil(), (high / every + 1e-9).floor());
    (0..TICKS_MAX).map(|n| first + f64::from(n)).take_while(|n| *n <= last).map(|n| n * every).collect()
}

/// The smallest 1, 2 or 5 times a power of ten that is not below a distance.
fn round(distance: f64) -> f64 {
    let power = libm::pow(10.0, libm::log10(distance.max(1e-12)).floor());
    [1.0, 2.0, 5.0]
        .map(|times| times * power)
        .into_iter()
        .find(|round| *round >= distance * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

/// A number with as many digits as say something.
#[must_use]
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 || size == 0.0 => 2,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A unit in which so many seconds are told, and how many of them it has.
#[must_use]
pub fn unit_of_time(seconds: f64) -> (&'static str, f64) {
    match seconds {
        long if long > 4.0 * 86_400.0 => ("days", 86_400.0),
        long if long > 3.0 * 3_600.0 => ("h", 3_600.0),
        long if long > 180.0 => ("min", 60.0),
        _ => ("s", 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_beside_an_axis_is_round() {
        assert_eq!(Scale::up_to(7.3).ticks(5), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(Scale::Even { low: 130.0, high: 210.0 }.ticks(4), [140.0, 160.0, 180.0, 200.0]);
        assert_eq!(Scale::up_to(0.0).ticks(2), [0.0, 0.5, 1.0]);
        assert_eq!((Scale::counts(1.0).ticks(4), Scale::counts(0.0).ticks(4)), (vec![0.0, 1.0], vec![0.0, 1.0]));
        assert_eq!(
            Scale::powers(0.2, 101.0).ticks(1).iter().map(|of| number(*of)).collect::<Vec<_>>(),
            ["0.1", "1", "10", "100", "1000"]
        );
        assert_eq!([0.0, 0.25, 12.0, 12.345, 1_234.5].map(number), ["0", "0.25", "12", "12.3", "1234"]);
    }

    #[test]
    fn values_lie_between_the_ends() {
        let scale = Scale::powers(1.0, 100.0);
        assert_eq!(
            [0.0, 1.0, 10.0, 100.0, 1e9, f64::NAN].map(|value| scale.place(value)),
            [0.0, 0.0, 0.5, 1.0, 1.0, 0.0]
        );
        assert_eq!([Scale::up_to(4.0).place(1.0), Scale::up_to(0.0).place(f64::NAN)], [0.25, 0.0]);
    }
}
