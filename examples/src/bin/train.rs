//! Trains a classifier of handwritten digits on several ranks, once per method of averaging
//! gradients, and prints what each method cost and achieved. See `train --help`.
//!
//! Started by hand it checks its arguments and data, then starts itself once per rank; started
//! by a launcher it is a rank.
#![forbid(unsafe_code)]

use brevity_examples::arguments::Arguments;
use brevity_examples::data::Dataset;
use brevity_examples::trainer::{Run, Settings};
use brevity_examples::{Error, job, plot, ranks, report};
use std::process::ExitCode;

fn main() -> ExitCode {
    brevity::log::to_stderr();
    let ending = if ranks::is_launched() { work().map(|()| 0) } else { start() };
    match ending {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("train: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

/// Checks everything that can be wrong, then starts the ranks; the exit status.
fn start() -> Result<u8, Error> {
    let arguments = Arguments::from_words(std::env::args_os())?;
    arguments.settings(&arguments.dataset()?)?;
    ranks::start(arguments.ranks)
}

/// Trains as a rank of the launcher's job; rank 0 tells what came out.
fn work() -> Result<(), Error> {
    let group = ranks::join()?;
    let told = train(&group).inspect_err(|_| group.abort());
    match told {
        Err(error) if ranks::is_told_elsewhere(&error, group.rank()) => {
            std::process::exit(i32::from(error.exit_status()))
        }
        other => other,
    }
}

fn train(group: &brevity::Group) -> Result<(), Error> {
    let mut arguments = Arguments::from_words(std::env::args_os())?;
    // The launcher knows how many ranks it has started.
    arguments.ranks = group.world_size() as usize;
    let dataset = arguments.dataset()?;
    let settings = arguments.settings(&dataset)?;
    let runs = job::train_all(group, &arguments, &dataset, &settings)?;
    if group.rank() == 0 { tell(&arguments, &dataset, &settings, &runs) } else { Ok(()) }
}

fn tell(arguments: &Arguments, dataset: &Dataset, settings: &Settings, runs: &[Run]) -> Result<(), Error> {
    let parameters = settings.model(dataset)?.parameters();
    let parameter_count = parameters.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    print!("{}", report::table(runs, parameter_count));
    if let Some(file) = &arguments.json {
        report::write_json(runs, file)?;
    }
    arguments.plot.as_deref().map_or(Ok(()), |file| plot::draw(runs, file))
}
