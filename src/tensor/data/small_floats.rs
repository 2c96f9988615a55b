//! Floating-point types of 8 and 4 bits (OCP 8-bit Floating Point Specification 1.0, Microscaling Formats Specification 1.0),
//! one element a byte. The values of ascending bits ascend, so that the bits of a value are searched.

/// A type, by the bits of its exponent and of its significand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SmallFloat<const EXPONENT: u32, const SIGNIFICAND: u32>(pub u8);

/// `e4m3fn`: no infinities, one NaN of each sign; the largest value is 448.
pub type E4m3 = SmallFloat<4, 3>;
/// `e5m2`: as binary16, with a shorter significand; the largest value is 57344.
pub type E5m2 = SmallFloat<5, 2>;
/// `e8m0`: powers of two without a sign, and NaN.
pub type E8m0 = SmallFloat<8, 0>;
/// `e2m1`: 0, 0.5, 1, 1.5, 2, 3, 4 and 6, with a sign.
pub type E2m1 = SmallFloat<2, 1>;

impl<const EXPONENT: u32, const SIGNIFICAND: u32> SmallFloat<EXPONENT, SIGNIFICAND> {
    const HAS_SIGN: bool = SIGNIFICAND > 0;

    /// Returns the value of bits without a sign.
    fn magnitude(bits: u8) -> f64 {
        let exponent = i32::from(bits >> SIGNIFICAND);
        let fraction = i32::from(bits) & ((1 << SIGNIFICAND) - 1);
        let (top, bias) = ((1 << EXPONENT) - 1, (1 << (EXPONENT - 1)) - 1);
        let is_last = fraction == (1 << SIGNIFICAND) - 1;
        match (EXPONENT, SIGNIFICAND) {
            (8, 0) if bits == 255 => return f64::NAN,
            (8, 0) => return 2f64.powi(i32::from(bits) - 127),
            (4, 3) if exponent == top && is_last => return f64::NAN,
            (5, 2) if exponent == top => return if fraction == 0 { f64::INFINITY } else { f64::NAN },
            _ => (),
        }
        let unit = 2f64.powi(exponent.max(1) - bias - SIGNIFICAND as i32);
        let implied = if exponent > 0 { 1 << SIGNIFICAND } else { 0 };
        f64::from(implied + fraction) * unit
    }

    /// Returns the bits of the largest finite value.
    fn largest() -> u8 {
        match (EXPONENT, SIGNIFICAND) {
            (8, 0) => 254,
            (4, 3) => 0x7e,
            (5, 2) => 0x7b,
            _ => (1 << (EXPONENT + SIGNIFICAND)) - 1,
        }
    }

    fn sign_bit() -> u8 {
        if Self::HAS_SIGN { 1 << (EXPONENT + SIGNIFICAND) } else { 0 }
    }

    /// Returns the value.
    pub fn value(self) -> f64 {
        let sign = Self::sign_bit();
        let magnitude = Self::magnitude(self.0 & !sign);
        if self.0 & sign != 0 { -magnitude } else { magnitude }
    }

    /// Returns the nearest value, with ties to even, and whether it differs. Values beyond the largest one become the largest
    /// one, as in conversions of CUDA with `satfinite`; so do infinities. NaN becomes NaN; `e2m1`, which has none, gives 6, and
    /// `e8m0` makes negative numbers the smallest power.
    pub fn nearest(value: f64) -> (Self, bool) {
        let last = Self::largest();
        if value.is_nan() {
            let bits = match (EXPONENT, SIGNIFICAND) {
                (8, 0) => 255,
                (4, 3) | (5, 2) => Self::sign_bit() - 1,
                _ => last,
            };
            return (Self(bits), SIGNIFICAND == 1);
        }
        let size = if Self::HAS_SIGN { value.abs() } else { value.max(0.0) };
        // The least bits of a value that is not below `size`.
        let (mut from, mut above) = (0, last);
        while from < above {
            let middle = from + (above - from) / 2;
            (from, above) = if Self::magnitude(middle) < size { (middle + 1, above) } else { (from, middle) };
        }
        let below = above.saturating_sub(1);
        let (down, up) = (size - Self::magnitude(below), Self::magnitude(above) - size);
        // Ties go to the even bits.
        let at = match down.partial_cmp(&up) {
            _ if size >= Self::magnitude(last) => last,
            Some(std::cmp::Ordering::Less) => below,
            Some(std::cmp::Ordering::Equal) if below % 2 == 0 => below,
            _ => above,
        };
        let sign = if value.is_sign_negative() { Self::sign_bit() } else { 0 };
        let it = Self(at | sign);
        (it, it.value() != value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<const EXPONENT: u32, const SIGNIFICAND: u32> SmallFloat<EXPONENT, SIGNIFICAND> {
        fn of_bits(bits: u8) -> Self {
            Self(bits)
        }
    }

    #[test]
    fn values_are_those_of_the_specifications() {
        let values: Vec<f64> = (0..=E2m1::largest()).map(|it| E2m1::of_bits(it).value()).collect();
        assert_eq!(values, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!(
            (E4m3::of_bits(0x7e).value(), E4m3::of_bits(0x01).value(), E4m3::of_bits(0x08).value()),
            (448.0, 2f64.powi(-9), 2f64.powi(-6))
        );
        assert_eq!((E5m2::of_bits(0x7b).value(), E5m2::of_bits(0x01).value()), (57344.0, 2f64.powi(-16)));
        assert_eq!((E8m0::of_bits(127).value(), E8m0::of_bits(0).value()), (1.0, 2f64.powi(-127)));
        assert!(
            E4m3::of_bits(0x7f).value().is_nan()
                && E5m2::of_bits(0x7c).value().is_infinite()
                && E8m0::of_bits(255).value().is_nan()
        );
    }

    #[test]
    fn conversions_round_to_nearest_even_and_saturate() {
        let fp4 = |v: f64| E2m1::nearest(v).0.value();
        assert_eq!(
            [fp4(0.25), fp4(0.75), fp4(2.5), fp4(5.0), fp4(-7.0), fp4(-0.3)],
            [0.0, 1.0, 2.0, 4.0, -6.0, -0.5]
        );
        let fp8 = |v: f64| E4m3::nearest(v).0.value();
        assert_eq!([fp8(17.0), fp8(19.0), fp8(1e9), fp8(2f64.powi(-11))], [16.0, 20.0, 448.0, 0.0]);
        for bits in 0..=254 {
            assert_eq!(E8m0::nearest(E8m0::of_bits(bits).value()), (E8m0::of_bits(bits), false));
        }
        for bits in 0..0x7f {
            assert_eq!(E4m3::nearest(E4m3::of_bits(bits).value()).0.0, bits);
        }
    }
}
