//! Trains while ranks are killed at random, and takes them back: see `survive --help`.
//!
//! Started by hand, it checks its arguments and data, then starts itself once for each rank, and again when
//! one is lost. Started by a launcher, as `brevity run -n 4 --restart 3`, it is a rank.
#![forbid(unsafe_code)]

use brevity_examples::surviving::arguments::Arguments;
use brevity_examples::surviving::{Training, deaths};
use brevity_examples::{Error, ranks};
use std::process::ExitCode;

fn main() -> ExitCode {
    brevity::log::to_stderr();
    let ending = if ranks::is_launched() { work().map(|()| 0) } else { start() };
    match ending {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("survive: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

fn start() -> Result<u8, Error> {
    let arguments = Arguments::from_words(std::env::args_os())?;
    arguments.settings(&arguments.dataset()?, arguments.ranks)?;
    ranks::start_again(arguments.ranks, arguments.restarts())
}

/// Trains as a rank; the lowest one at the end prints the result.
fn work() -> Result<(), Error> {
    let arguments = Arguments::from_words(std::env::args_os())?;
    let dataset = arguments.dataset()?;
    let group = ranks::join()?;
    let world_size = group.first_world_size() as usize;
    let settings = arguments.settings(&dataset, world_size)?;
    let steps = settings.steps(&dataset, world_size);
    let planned = deaths(arguments.losses, steps, world_size as u32, arguments.seed);
    let way = (arguments.way(), arguments.patience());
    let training = Training::new(group, (&dataset, &settings), way, world_size)?;
    let survived = training.run(&planned)?;
    if survived.is_lowest {
        println!(
            "{}: {:.2} % of the test examples are classified correctly after {steps} steps; {} losses, {} \
             returns, {} of {world_size} ranks at the end",
            dataset.name,
            100.0 * survived.test_accuracy,
            survived.losses,
            survived.returns,
            survived.ranks,
        );
    }
    Ok(())
}
