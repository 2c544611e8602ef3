//! `brevity perf scaling`: the time of summing gradients by the number of ranks, on the simulated network.

use brevity_bench::output::{is_standard_output, print};
use brevity_bench::perf::{Simulation, Summing};
use brevity_bench::record;
use brevity_bench::size::Size;
use plotters::prelude::*;
use serde::Serialize;

use super::arguments::{PerfArguments, refuse};
use super::error::Result;
use super::report::Report;
use brevity_bench::output::Outputs;

/// The name on the command line.
pub const NAME: &str = "scaling";

/// The links of the gTop-k paper, in seconds: gigabit Ethernet.
const ALPHA: f64 = 0.436e-3;
const BETA: f64 = 9e-9;

/// The elements and the density of its Figure 9, and its largest number of ranks.
const ELEMENTS: usize = 25_000_000;
const DENSITY: f64 = 0.001;
const RANKS: u32 = 128;

/// The most ranks of a simulation.
const MOST_RANKS: u32 = 1024;

/// Elements of many ranks, and speed of their links, are divided by this.
const PART: usize = 100;

/// The most ranks that have all entries of what grows with their square.
const WHOLE: u32 = 32;

/// The most ranks of Ok-Topk, each of which gathers all entries in its first step. A part of them is no
/// measure for it: most of its messages are short.
const GATHERING: u32 = 128;

/// What is simulated.
#[derive(Clone, Copy)]
struct Plan {
    elements: usize,
    k: usize,
    alpha: f64,
    beta: f64,
    most: u32,
}

/// The time of each way with so many ranks, in milliseconds.
#[derive(Debug, Serialize)]
struct Row {
    ranks: u32,
    ways: Vec<Way>,
}

#[derive(Debug, Serialize)]
struct Way {
    name: String,
    /// `None` with more ranks than there is memory for.
    ms: Option<f64>,
}

/// Simulates, prints a table, and draws.
///
/// # Errors
/// [`Error::Arguments`](super::Error::Arguments) for options that it does not take; if a simulation fails.
pub fn perf(arguments: &PerfArguments) -> Result<()> {
    let plan = Plan::of(arguments)?;
    let outputs = Outputs::open(arguments.json.as_deref(), arguments.plot.as_deref())?;
    let prints = !arguments.json.as_deref().is_some_and(is_standard_output);
    let tell = |text: &str| if prints { print(&format!("{text}\n")) } else { Ok(()) };
    let Plan { elements, k, alpha, beta, most } = plan;
    tell(&format!("# brevity scaling: {elements} elements, {k} entries, sim: {alpha} s, {beta} s a byte"))?;
    let names = Summing::ALL.map(|summing| format!("{summing:>18}")).concat();
    tell(&format!("# Ranks{names}   (ms)"))?;
    let mut rows = Vec::new();
    for ranks in (2..).map(|power| 1 << power).take_while(|ranks| *ranks <= most) {
        let row = plan.row(ranks)?;
        let figure = |way: &Way| way.ms.map_or_else(|| format!("{:>18}", "-"), |ms| format!("{ms:>18.2}"));
        let figures: String = row.ways.iter().map(figure).collect();
        tell(&format!("{ranks:<7}{figures}"))?;
        rows.push(row);
    }
    let report = Report {
        name: NAME.into(),
        transport: "sim",
        world_size: most,
        dtype: "f32",
        version: env!("CARGO_PKG_VERSION"),
        rows,
    };
    if let Some(plot) = outputs.plot {
        plot.write(&svg(&report)?)?;
    }
    Ok(outputs.json.map_or(Ok(()), |json| json.write(&record::to_json(&report)?))?)
}

impl Plan {
    fn of(arguments: &PerfArguments) -> Result<Self> {
        let others = [
            ("--size", arguments.size.is_some()),
            ("--dtype", arguments.dtype.is_some()),
            ("--values", arguments.values.is_some()),
            ("--rank", arguments.rank.is_some()),
            ("--model", arguments.model.is_some()),
            ("--policy", !arguments.policy.is_empty()),
            ("--bucket-bytes", arguments.bucket_bytes.is_some()),
            ("--overlap", arguments.overlap),
            ("--tests", arguments.tests.is_some()),
            ("--iterations", arguments.iterations.is_some()),
            ("--warmup", arguments.warmup.is_some()),
            ("--grace", arguments.grace.is_some()),
            ("--verify", arguments.verify),
            ("--transport", arguments.transport.is_some()),
            ("--only", !arguments.only.is_empty()),
            ("--record", arguments.record.is_some()),
            ("--trace", arguments.trace.is_some()),
        ];
        for (option, is_given) in others {
            refuse(is_given, || {
                format!(
                    "{option} does not go with scaling: it takes --ranks, --elements, --density, --alpha \
                         and --beta"
                )
            })?;
        }
        let most = arguments.ranks.unwrap_or(RANKS);
        refuse(!(4..=MOST_RANKS).contains(&most), || {
            format!("--ranks {most}: scaling takes from 4 to {MOST_RANKS} ranks")
        })?;
        refuse(arguments.density.len() > 1, || "--density: scaling takes one".into())?;
        let density = arguments.density.first().copied().unwrap_or(DENSITY);
        let elements = arguments.elements.map_or(ELEMENTS, |Size(elements)| elements);
        let k = (elements as f64 * density).round() as usize;
        refuse(!(PART..=elements).contains(&k), || {
            format!("--density {density}: expected at least {PART} of {elements} elements, and at most all")
        })?;
        refuse(!elements.is_multiple_of(PART) || !k.is_multiple_of(PART), || {
            format!(
                "{k} entries of {elements} elements: expected multiples of {PART}, because a part of so many \
                 stands for all; change --elements or --density"
            )
        })?;
        let seconds = |option: &str, given: Option<f64>, default: f64| -> Result<f64> {
            let seconds = given.unwrap_or(default);
            refuse(!(0.0..=1e3).contains(&seconds), || {
                format!("--{option} {seconds}: expected from 0 to 1000 seconds")
            })?;
            Ok(seconds)
        };
        let alpha = seconds("alpha", arguments.alpha, ALPHA)?;
        let beta = seconds("beta", arguments.beta, BETA)?;
        Ok(Self { elements, k, alpha, beta, most })
    }

    fn row(self, ranks: u32) -> Result<Row> {
        let way = |summing: Summing| {
            if summing == Summing::OkTopk && ranks > GATHERING {
                return Ok(Way { name: summing.to_string(), ms: None });
            }
            let is_part = summing.is_dense() || summing.is_large() && ranks > WHOLE;
            let part = if is_part { PART } else { 1 };
            let Self { elements, k, alpha, beta, .. } = self;
            let on = Simulation { world_size: ranks, alpha, beta: beta * part as f64 };
            let seconds = summing.seconds(on, elements / part, k / part)?;
            Ok(Way { name: summing.to_string(), ms: Some(seconds * 1e3) })
        };
        Ok(Row { ranks, ways: Summing::ALL.into_iter().map(way).collect::<Result<_>>()? })
    }
}

const PIXELS: (u32, u32) = (800, 500);

const COLOURS: [RGBColor; Summing::ALL.len()] = [
    RGBColor(0x33, 0x33, 0x33),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
];

fn svg(report: &Report<Row>) -> Result<String> {
    let mut drawing = String::new();
    let drawn = draw(report, &mut drawing);
    drawn.map_err(|error| brevity_bench::Error::contestant("the drawing", error.to_string()))?;
    Ok(drawing)
}

/// Both axes logarithmic: a line for each way.
fn draw(report: &Report<Row>, into: &mut String) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let times = || report.rows.iter().flat_map(|row| row.ways.iter().filter_map(|way| way.ms));
    let (low, high) = (times().fold(f64::INFINITY, f64::min) / 1.3, times().fold(0.0, f64::max) * 1.3);
    let area = SVGBackend::with_string(into, PIXELS).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("time of summing gradients on the simulated network", ("sans-serif", 20))
        .margin(15)
        .x_label_area_size(45)
        .y_label_area_size(70)
        .build_cartesian_2d(
            (3.5..f64::from(report.world_size) * 1.15).log_scale().base(2.0),
            (low..high).log_scale(),
        )?;
    chart.configure_mesh().x_desc("ranks").y_desc("milliseconds").draw()?;
    for (place, colour) in COLOURS.into_iter().enumerate() {
        let point = |row: &Row| Some((f64::from(row.ranks), row.ways[place].ms?));
        let points = || report.rows.iter().filter_map(point);
        chart
            .draw_series(LineSeries::new(points(), colour.stroke_width(2)))?
            .label(Summing::ALL[place].to_string())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
        chart.draw_series(points().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .draw()?;
    area.present()
}

#[cfg(test)]
mod tests {
    use super::super::parsed::parsed;
    use super::*;

    fn plan(line: &str) -> Result<Plan> {
        Plan::of(&parsed(NAME, line))
    }

    #[test]
    fn each_number_of_ranks_has_a_time_for_each_way() {
        let plan = plan("--elements 40000 --density 0.01 --ranks 8").unwrap();
        let rows: Vec<Row> = [4, 8].map(|ranks| plan.row(ranks).unwrap()).into();
        assert!(rows.iter().all(|row| row.ways.len() == 6));
        // Four ranks are one host, whose links are fast.
        assert!(rows.iter().all(|row| row.ways[..5].iter().all(|way| way.ms > Some(0.4))));
        assert!(rows[0].ways[5].ms > Some(0.01) && rows[1].ways[5].ms > Some(0.4));
        let report =
            Report { name: NAME.into(), transport: "sim", world_size: 8, dtype: "f32", version: "", rows };
        let drawing = svg(&report).unwrap();
        assert!(drawing.starts_with("<svg") && drawing.contains("Ok-Topk"), "{drawing}");
    }

    #[test]
    fn many_ranks_have_no_time_of_ok_topk() {
        let plan = plan("--elements 10000 --density 0.01 --ranks 256").unwrap();
        let row = plan.row(256).unwrap();
        let missing: Vec<&str> =
            row.ways.iter().filter(|way| way.ms.is_none()).map(|way| &*way.name).collect();
        assert_eq!(missing, ["Ok-Topk"]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_one_line() {
        for (line, expected) in [
            ("--size 4:8", "--size does not go with scaling"),
            ("--ranks 2", "from 4 to 1024"),
            ("--ranks 1025", "from 4 to 1024"),
            ("--elements 1000050 --density 0.01", "of 1000050 elements: expected multiples of 100"),
            ("--elements 1000000 --density 0.00025", "250 entries of 1000000 elements"),
            ("--density 0.1,0.2", "takes one"),
            ("--density 1e-7", "expected at least 100 of"),
            ("--alpha 2000", "from 0 to 1000 seconds"),
        ] {
            let message = plan(line).err().unwrap().to_string();
            assert!(message.contains(expected) && message.lines().count() == 1, "{line}: {message}");
        }
        let plan = plan("").unwrap();
        assert_eq!((plan.elements, plan.k, plan.most), (25_000_000, 25_000, 128));
    }
}
