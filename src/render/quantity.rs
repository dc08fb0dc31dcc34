//! Kubernetes quantities as numbers.
//!
//! Source: apimachinery `pkg/api/resource/quantity.go`.

/// A quantity as thousandths, rounded up; `None` if the text is no quantity or does not fit.
pub fn milli(text: &str) -> Option<i128> {
    let split = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let (negative, digits) = match number.as_bytes().first()? {
        b'-' => (true, &number[1..]),
        b'+' => (false, &number[1..]),
        _ => (false, number),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if (whole.is_empty() && fraction.is_empty()) || !(whole.bytes().chain(fraction.bytes())).all(|b| b.is_ascii_digit())
    {
        return None;
    }
    // `mantissa` × 10^-places, scaled by the suffix.
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let places = i32::try_from(fraction.len()).ok()?;
    let (factor, exponent): (i128, i32) = match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        _ => (1, suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    let scaled = mantissa.checked_mul(factor)?;
    let power = exponent.checked_add(3)?.checked_sub(places)?;
    let ten = 10_i128.checked_pow(power.unsigned_abs().min(38))?;
    let milli = if power >= 0 { scaled.checked_mul(ten)? } else { divide_up(scaled, ten) };
    Some(if negative { -milli } else { milli })
}

/// For a number that is not negative and a positive divisor.
fn divide_up(number: i128, by: i128) -> i128 {
    number / by + i128::from(number % by != 0)
}

/// A quantity in whole units, rounded down: the cores of `2500m` are 2.
pub(super) fn whole(text: &str) -> Option<u32> {
    u32::try_from(milli(text)?.div_euclid(1000)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("4", 4_000),
            ("+4", 4_000),
            ("-1", -1_000),
            ("500m", 500),
            ("1.5", 1_500),
            (".5", 500),
            ("1.", 1_000),
            ("2k", 2_000_000),
            ("1e3", 1_000_000),
            ("1E-1", 100),
            ("64Gi", 64 * (1_i128 << 30) * 1000),
            ("0.5Ki", 512_000),
            ("1n", 1),
        ] {
            assert_eq!(milli(text), Some(expected), "{text}");
        }
        for text in
            ["", "abc", "1.2.3", "-", ".", "1 Gi", "1gi", "1ee3", "--1", "1e999999999999", "12345678901234567890E99"]
        {
            assert_eq!(milli(text), None, "{text}");
        }
        assert_eq!(milli("100E"), Some(100 * 10_i128.pow(21)));
    }

    #[test]
    fn whole_units_are_rounded_down() {
        for (text, expected) in [("2500m", Some(2)), ("999m", Some(0)), ("40", Some(40)), ("-1", None), ("x", None)] {
            assert_eq!(whole(text), expected, "{text}");
        }
    }
}
