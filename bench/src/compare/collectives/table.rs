//! The figures as a table, and the verdict.

use super::decades::Decade;
use crate::compare::pairs::Comparison;
use crate::size::Size;

/// The head of the table.
pub fn head() -> String {
    format!(
        "{:<14} {:<5} {:>3} {:>9} {:<5} {:<26} {:>12} {:>12} {:>7} {:>15} {:>12} {:>7}  bar",
        "# what",
        "wire",
        "P",
        "size",
        "ours",
        "theirs",
        "ours(us)",
        "theirs(us)",
        "ratio",
        "interval",
        "floor(us)",
        "/floor"
    )
}

/// A line of the table.
pub fn line(row: &Comparison) -> String {
    let verdict = match (row.bar, row.met) {
        (Some(bar), Some(true)) => format!("{bar}: met"),
        (Some(bar), Some(false)) => format!("{bar}: NOT MET"),
        _ => String::new(),
    };
    let floor = |figure: fn(f64, f64) -> String| {
        row.floor_us.filter(|&floor| floor > 0.0).map_or("-".to_owned(), |floor| figure(row.ours_us, floor))
    };
    let line = format!(
        "{:<14} {:<5} {:>3} {:>9} {:<5} {:<26} {:>12.3} {:>12.3} {:>7.3} {:>15} {:>12} {:>7}  {verdict}",
        row.subject.what,
        row.subject.wire,
        row.subject.world_size,
        Size(row.subject.bytes).to_string(),
        row.ours,
        row.peer,
        row.ours_us,
        row.theirs_us,
        row.ratio,
        format!("{:.3}..{:.3}", row.ratio_low, row.ratio_high),
        floor(|_, floor| format!("{floor:.1}")),
        floor(|ours, floor| format!("{:.3}", ours / floor)),
    );
    line.trim_end().to_owned()
}

/// The decades, how many bars are met, and which are not.
pub fn verdict(pairs: &[Comparison], decades: &[Decade]) -> String {
    let of_decade = |decade: &Decade| {
        let Decade { what, wire, world_size, power, sizes, geometric_mean, bar, met } = decade;
        let met = if *met { "met" } else { "NOT MET" };
        format!(
            "# {what} {wire}, {world_size} ranks, from 10^{power} bytes: geometric mean of {sizes} \
             {geometric_mean:.3}  {bar}: {met}\n"
        )
    };
    let mut text: String = decades.iter().map(of_decade).collect();
    let judged = pairs.iter().filter_map(|pair| pair.met).chain(decades.iter().map(|decade| decade.met));
    let (met, all) = judged.fold((0, 0), |(met, all), is_met| (met + usize::from(is_met), all + 1));
    text.push_str(&format!("# {met} of {all} bars met"));
    pairs.iter().filter(|pair| pair.met == Some(false)).for_each(|pair| {
        text.push('\n');
        text.push_str(&line(pair));
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::bar::Bar;
    use crate::compare::pairs::{Subject, Turn};

    #[test]
    fn a_line_has_the_floor_where_there_is_one() {
        let subject = Subject { what: "allreduce".into(), wire: "links", world_size: 4, bytes: 1 << 20 };
        let pair = Comparison::new(subject, "tcp", "Gloo", vec![Turn::of(&(30.0, 20.0))], 0).unwrap();
        let words = |pair: &Comparison| line(pair).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(&pair), "allreduce links 4 1M tcp Gloo 30.000 20.000 1.500 1.500..1.500 - -");
        let pair = Comparison { floor_us: Some(15.0), ..pair.judged(Bar::Ratio(1.02)) };
        assert!(words(&pair).ends_with("15.0 2.000 1.02x: NOT MET"), "{}", line(&pair));
        assert!(verdict(&[pair], &[]).starts_with("# 0 of 1 bars met\nallreduce"));
    }
}
