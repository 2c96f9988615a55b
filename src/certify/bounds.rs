//! Numbers between bounds, and on which bounds of its operand an operator gives them.

use super::*;

/// The largest finite number of the floating-point types but half precision and double precision, less what they round.
pub(crate) const LARGEST: f64 = 3.38e38;
/// The least positive number; products below `NORMAL` may be 0.
pub(crate) const LEAST: f64 = 1e-45;
pub(crate) const NORMAL: f64 = 1.2e-38;

/// The numbers from `low` to `high` whose magnitude is at least `least`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bounds {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) least: f64,
}

pub(crate) const FINITE: Bounds = within(LARGEST);
pub(crate) const ANY: Bounds = within(f64::INFINITY);
pub(crate) const TRUTH: Bounds = Bounds { low: 0.0, high: 1.0, least: 0.0 };

pub(crate) const fn within(most: f64) -> Bounds {
    Bounds { low: -most, high: most, least: 0.0 }
}

impl Bounds {
    pub(crate) const fn new(low: f64, high: f64) -> Self {
        Self { low, high, least: 0.0 }
    }

    /// Returns the numbers of both.
    pub(crate) fn meet(self, other: Self) -> Self {
        let (low, high) = (self.low.max(other.low), self.high.min(other.high));
        Self { low, high, least: self.least.max(other.least) }
    }

    pub(crate) fn has(self, other: Self) -> bool {
        let least = if other.low > 0.0 { other.low } else { (-other.high).max(other.least) };
        self.low <= other.low && other.high <= self.high && self.least <= least
    }

    pub(crate) fn is_empty(self) -> bool {
        self.low > self.high || self.least > self.low.abs().max(self.high.abs())
    }

    /// Returns the factors by which a number gives these.
    pub(crate) fn over(self, factor: f64) -> Self {
        // A zero is positive, as its reciprocal is then.
        let (low, high) = (self.low / factor + 0.0, self.high / factor + 0.0);
        let least = if factor.abs() < 1.0 && self.least > 0.0 { self.least.max(NORMAL) } else { self.least };
        let least = if least <= LEAST { least } else { least / factor.abs() };
        Self { low: low.min(high), high: low.max(high), least }
    }

    /// Returns the magnitudes, or the positive numbers, of which two have a product that is one of these.
    pub(crate) fn root(self) -> Self {
        let least = if self.least > 0.0 { self.least.max(NORMAL).sqrt() } else { 0.0 };
        match self.low {
            low if low < 0.0 => Self { least, ..within(self.high.min(-low).max(0.0).sqrt()) },
            low => Self { low: low.sqrt(), high: self.high.max(0.0).sqrt(), least },
        }
    }

    /// Returns these numbers without those below a normal one, unless 0 is among them.
    pub(crate) fn normal(self, normal: f64) -> Self {
        Self {
            low: if self.low > 0.0 { self.low.max(normal) } else { self.low },
            high: if self.high < 0.0 { self.high.min(-normal) } else { self.high },
            least: if self.least > 0.0 { self.least.max(normal) } else { 0.0 },
        }
    }

    pub(crate) fn times(self, other: Self) -> Self {
        let all = [self.low, self.high].map(|a| [other.low, other.high].map(|b| a * b)).concat();
        Self::new(all.iter().copied().fold(f64::MAX, f64::min), all.into_iter().fold(f64::MIN, f64::max))
    }

    pub(crate) fn hull(self, other: Self) -> Self {
        Self::new(self.low.min(other.low), self.high.max(other.high))
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self::new(self.low + other.low, self.high + other.high)
    }
}

pub(crate) fn largest(of: DType) -> f64 {
    if of == DType::Half { 65_504.0 } else { LARGEST }
}

/// Returns a range of what an operator computes from finite numbers, where it is finite.
pub(crate) fn range_of(op: Op, to: DType) -> Bounds {
    match op {
        _ if to.class() == Class::Bool => TRUTH,
        Op::Sigmoid => TRUTH,
        Op::Tanh | Op::Sin | Op::Cos | Op::Erf => within(1.0),
        Op::Exp | Op::Exp2 | Op::Sqrt | Op::Rsqrt | Op::Abs | Op::Relu => Bounds::new(0.0, f64::MAX),
        _ => within(f64::MAX),
    }
}

/// Returns bounds of the first operand on which an operator gives a number within bounds.
pub(crate) fn need_of(op: Op, need: Bounds) -> Option<Bounds> {
    let Bounds { low, high, least } = need;
    let (magnitude, is_free) = (high.min(-low), least == 0.0);
    let exponential = |log: fn(f64) -> f64| {
        let low = if is_free { low } else { low.max(least).max(NORMAL) };
        (high > 0.0).then(|| Bounds::new(if low > 0.0 { log(low) } else { f64::NEG_INFINITY }, log(high)))
    };
    let positive = |low: f64, high: f64| Bounds { low: low.max(0.0), high, least: LEAST };
    match op {
        Op::Exp => exponential(f64::ln),
        Op::Log if is_free => Some(positive(low.exp(), high.exp())),
        Op::Log1p if is_free => Some(Bounds::new(low.exp_m1().max(-0.999), high.exp_m1())),
        Op::Sqrt => Some(Bounds {
            low: low.max(0.0).powi(2),
            high: high.powi(2),
            least: least.powi(2).max(if is_free { 0.0 } else { LEAST }),
        }),
        Op::Rsqrt => {
            let most = if low.max(least) > 0.0 { low.max(least).powi(-2) } else { f64::INFINITY };
            Some(Bounds { low: 0.0, high: most, least: high.powi(-2).max(LEAST) })
        }
        Op::Reciprocal if low < 0.0 && high <= 0.0 => Some(need_of(op, need.over(-1.0))?.over(-1.0)),
        Op::Reciprocal if low < 0.0 => {
            let most = if is_free { f64::INFINITY } else { least.recip() };
            Some(Bounds { least: magnitude.recip().max(NORMAL), ..within(most) })
        }
        Op::Reciprocal => {
            let most = if low.max(least) > 0.0 { low.max(least).recip() } else { f64::INFINITY };
            Some(Bounds { low: 0.0, high: most, least: high.recip().max(NORMAL) })
        }
        Op::Abs if low <= 0.0 => Some(Bounds { least, ..within(high) }),
        Op::Relu if low <= 0.0 && is_free => Some(Bounds::new(f64::NEG_INFINITY, high)),
        Op::Tanh | Op::Sigmoid | Op::Sin | Op::Cos | Op::Erf if need.has(within(1e3)) => Some(ANY),
        _ => None,
    }
}
