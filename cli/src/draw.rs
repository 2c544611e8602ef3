//! `brevity draw`: the messages of collectives, as the simulated network passes them.

use std::fs;
use std::path::PathBuf;

use brevity::collectives::{Algorithm, Topology};
use brevity::transport::sim::Passage;
use brevity_bench::collective::{Collective, measured};
use brevity_bench::perf::{Simulation, hierarchical_passages, passages};
use brevity_bench::size::Size;
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::plan;

/// Draws the messages of a collective on a simulated network, one SVG file for each of its algorithms.
///
/// A line for each rank, and an arrow for each message: it begins when the first byte leaves the sender, and
/// ends when the last one has come. The darker it is, the more bytes it has.
/// In a hierarchical-all-reduce, for which hosts must have several ranks, leaders select a hundredth of the
/// vector.
#[derive(Clone, Debug, clap::Args)]
pub struct DrawArguments {
    /// One collective, as all-reduce [default: all]
    pub name: Option<String>,
    /// One algorithm, as ring [default: all]
    #[arg(long)]
    pub algorithm: Option<String>,
    /// Ranks
    #[arg(short = 'n', long, value_name = "N", alias = "np", default_value = "6",
        value_parser = clap::value_parser!(u32).range(2..=64))]
    pub ranks: u32,
    /// Hosts, each with as many ranks, one behind the other [default: one for each rank]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub hosts: Option<u32>,
    /// Bytes of the vector, or of each rank's block
    #[arg(long, value_name = "BYTES", default_value = "12K")]
    pub size: Size,
    /// Seconds that a message takes
    #[arg(long, value_name = "SECONDS", default_value = "20e-6", value_parser = plan::seconds)]
    pub alpha: f64,
    /// Seconds that a byte takes
    #[arg(long, value_name = "SECONDS", default_value = "8e-9", value_parser = plan::seconds)]
    pub beta: f64,
    /// The folder of the files, named after collective and algorithm
    #[arg(short, long, value_name = "FOLDER", default_value = ".")]
    pub output: PathBuf,
}

/// Draws what is asked for.
///
/// # Errors
/// For an unknown collective or algorithm, and if a file can't be written.
pub fn draw(arguments: &DrawArguments) -> brevity_bench::Result<()> {
    let asked = asked(arguments)?;
    let written = |error: std::io::Error| {
        brevity_bench::Error::Arguments(format!("{}: {error}", arguments.output.display()))
    };
    fs::create_dir_all(&arguments.output).map_err(written)?;
    let DrawArguments { ranks, hosts, alpha, beta, .. } = *arguments;
    let placed = plan::placed(ranks, hosts)?;
    for (name, call) in asked {
        let simulation = Simulation { world_size: ranks, alpha, beta };
        let messages = call.passages((simulation, &placed), arguments.size.0)?;
        let algorithm = call.algorithm();
        let title = format!("{name}, {algorithm}: {ranks} ranks, {} messages", messages.len());
        let drawing = svg(&title, ranks, &messages)
            .map_err(|error| brevity_bench::Error::contestant("the drawing", error.to_string()))?;
        fs::write(arguments.output.join(format!("{name}-{algorithm}.svg")), drawing).map_err(written)?;
    }
    Ok(())
}

/// A call whose messages are drawn.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// Of a dense collective.
    Dense(Collective, Algorithm),
    /// Of a sum that is dense inside hosts and sparse between them.
    Hierarchical,
}

impl Call {
    const fn algorithm(self) -> Algorithm {
        match self {
            Self::Dense(_, algorithm) => algorithm,
            Self::Hierarchical => Algorithm::Hosts,
        }
    }

    fn passages(self, on: (Simulation, &[u32]), bytes: usize) -> brevity_bench::Result<Vec<Passage>> {
        match self {
            Self::Dense(collective, algorithm) => passages(on, collective, Some(algorithm), bytes),
            Self::Hierarchical => {
                let k = (bytes / size_of::<f32>()).div_ceil(100);
                hierarchical_passages(on, bytes, k)
            }
        }
    }
}

/// What to draw: the name of a collective, and a call of it.
type Asked = (String, Call);

fn asked(arguments: &DrawArguments) -> brevity_bench::Result<Vec<Asked>> {
    let mut all: Vec<Asked> = Vec::new();
    let placed = plan::placed(arguments.ranks, arguments.hosts)?;
    for (name, algorithms) in plan::algorithms(&placed, arguments.size.0) {
        let plain = name.replace('-', "");
        let Some(collective) = measured().find(|collective| collective.name() == plain) else { continue };
        let calls = algorithms.into_iter().map(|algorithm| Call::Dense(collective, algorithm));
        all.extend(calls.map(|call| (name.clone(), call)));
    }
    if Topology::of(&placed).has_levels() {
        all.push(("hierarchical-all-reduce".to_owned(), Call::Hierarchical));
    }
    let mut found = all.clone();
    found.retain(|(name, call)| {
        let wants = |wish: &Option<String>, name: &str| wish.as_ref().is_none_or(|wish| wish == name);
        wants(&arguments.name, name) && wants(&arguments.algorithm, call.algorithm().name())
    });
    if found.is_empty() {
        let mut names: Vec<_> = all.iter().map(|(name, ..)| &name[..]).collect();
        names.dedup();
        let what = format!("nothing to draw: `brevity plan` shows the algorithms of {}", names.join(", "));
        return Err(brevity_bench::Error::Arguments(what));
    }
    Ok(found)
}

const WIDTH: u32 = 720;
/// Above the first rank's line, and below the last one's.
const MARGIN: u32 = 45;
const LINE: u32 = 40;

type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<std::io::Error>>;

fn svg(title: &str, ranks: u32, messages: &[Passage]) -> Drawn<String> {
    let mut drawing = String::new();
    {
        let height = 2 * MARGIN + LINE * (ranks - 1);
        let area = SVGBackend::with_string(&mut drawing, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE)?;
        draw_on(&area, title, ranks, messages)?;
        area.present()?;
    }
    Ok(drawing)
}

fn draw_on(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    ranks: u32,
    messages: &[Passage],
) -> Drawn {
    let (left, right) = (70.0, f64::from(WIDTH) - 30.0);
    let end = messages.iter().map(|message| message.ended.as_secs_f64()).fold(0.0, f64::max);
    let scale = if end > 0.0 { (right - left) / end } else { 0.0 };
    let x = |seconds: f64| (left + seconds * scale).round() as i32;
    let y = |rank: u32| (MARGIN + LINE * rank) as i32;
    let font = ("sans-serif", 15).into_font();
    area.draw(&Text::new(title.to_owned(), (10, 8), ("sans-serif", 17).into_font()))?;
    for rank in 0..ranks {
        area.draw(&Text::new(format!("rank {rank}"), (10, y(rank) - 8), font.clone()))?;
        let line = [(x(0.0), y(rank)), (x(end), y(rank))];
        area.draw(&PathElement::new(line, RGBColor(200, 200, 200).stroke_width(1)))?;
    }
    let time = format!("{:.1} us", end * 1e6);
    area.draw(&Text::new(time, (right as i32 - 60, y(ranks - 1) + 18), font))?;
    let most = messages.iter().map(|message| message.bytes).max().unwrap_or(0).max(1);
    for message in messages {
        // From light to dark blue.
        let light = (150.0 * (1.0 - message.bytes as f64 / most as f64)) as u8;
        let colour = RGBColor(light, light.saturating_add(60), 200);
        let from = (x(message.begun.as_secs_f64()), y(message.from.0));
        let to = (x(message.ended.as_secs_f64()), y(message.to.0));
        area.draw(&PathElement::new([from, to], colour.stroke_width(2)))?;
        area.draw(&Polygon::new(head(from, to), colour.filled()))?;
    }
    Ok(())
}

/// The head of an arrow.
fn head(from: (i32, i32), to: (i32, i32)) -> [(i32, i32); 3] {
    const LENGTH: f64 = 8.0;
    const HALF_WIDTH: f64 = 3.5;
    let (dx, dy) = (f64::from(to.0 - from.0), f64::from(to.1 - from.1));
    let length = dx.hypot(dy).max(1.0);
    let (dx, dy) = (dx / length, dy / length);
    let back = (f64::from(to.0) - LENGTH * dx, f64::from(to.1) - LENGTH * dy);
    let side = |sign: f64| {
        let (x, y) = (back.0 - sign * HALF_WIDTH * dy, back.1 + sign * HALF_WIDTH * dx);
        (x.round() as i32, y.round() as i32)
    };
    [to, side(1.0), side(-1.0)]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: DrawArguments,
    }

    fn arguments(line: &str) -> DrawArguments {
        Command::try_parse_from(std::iter::once("draw").chain(line.split_whitespace())).unwrap().arguments
    }

    #[test]
    fn every_algorithm_is_drawn_unless_others_are_asked_for() {
        let count = |line| asked(&arguments(line)).unwrap().len();
        assert_eq!(count("all-reduce"), 4);
        assert_eq!(count("--algorithm ring"), 3);
        assert_eq!(count("barrier"), 1);
        assert_eq!(count("--algorithm hosts -n 8 --hosts 2"), 10);
        assert_eq!(count("hierarchical-all-reduce -n 8 --hosts 2"), 1);
        assert!(count("") > 20);
        for wrong in
            ["all-reductions", "all-reduce --algorithm bruck", "--algorithm hosts", "hierarchical-all-reduce"]
        {
            let error = asked(&arguments(wrong)).unwrap_err().to_string();
            assert!(error.contains("all-reduce") && error.contains("barrier"), "{error}");
        }
    }

    #[test]
    fn a_drawing_has_an_arrow_for_each_message() {
        let simulation = Simulation { world_size: 6, alpha: 20e-6, beta: 8e-9 };
        let ring = Some(Algorithm::Ring);
        let messages = passages((simulation, &[0; 6]), Collective::AllReduce, ring, 12 << 10).unwrap();
        assert_eq!(messages.len(), 6 * 10);
        let drawing = svg("a ring", 6, &messages).unwrap();
        assert_eq!(drawing.matches("<polygon").count(), messages.len());
        assert!(drawing.contains("a ring") && drawing.contains("rank 5"));
    }

    /// In trees of two rounds: to each leader, between the two, and back.
    #[test]
    fn a_hierarchical_sum_sends_little_between_hosts() {
        let simulation = Simulation { world_size: 8, alpha: 20e-6, beta: 8e-9 };
        let hosts = [0, 0, 0, 0, 1, 1, 1, 1];
        let messages = Call::Hierarchical.passages((simulation, &hosts), 12 << 10).unwrap();
        let (inside, between): (Vec<&Passage>, Vec<&Passage>) = messages
            .iter()
            .partition(|message| hosts[message.from.0 as usize] == hosts[message.to.0 as usize]);
        assert_eq!(inside.iter().filter(|message| message.bytes >= 12 << 10).count(), 6);
        assert_eq!(between.len(), 2);
        assert!(between.iter().all(|message| message.bytes < 12 << 8));
    }

    #[test]
    fn the_head_of_an_arrow_is_at_its_end() {
        assert_eq!(head((0, 0), (20, 0)), [(20, 0), (12, 4), (12, -4)]);
        assert_eq!(head((5, 5), (5, 5))[0], (5, 5));
    }
}
