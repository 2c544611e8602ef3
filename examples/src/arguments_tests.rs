//! Tests of the arguments.

use super::*;
use std::path::Path;

fn parse(words: &str) -> Result<Arguments, Error> {
    Arguments::from_words(std::iter::once("train").chain(words.split_whitespace()))
}

/// The error message for an invalid command line.
fn refusal(words: &str) -> String {
    let error = match parse(words) {
        Ok(arguments) => arguments.settings(&arguments.dataset().unwrap()).unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(error.exit_status(), 2, "{error}");
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line}");
    line
}

#[test]
fn nothing_given_means_the_defaults() {
    let arguments = parse("").unwrap();
    assert_eq!(arguments.ranks, 4);
    assert_eq!(arguments.method, [Method::Dense, Method::Gtopk, Method::Lowrank]);
    assert_eq!((arguments.density, arguments.rank), (0.01, 2));
    let settings = arguments.settings(&arguments.dataset().unwrap()).unwrap();
    assert_eq!((settings.epochs, settings.batch_size), (30, 8));
    assert_eq!(settings.hidden, [128]);
}

#[test]
fn everything_can_be_given() {
    let words = "--ranks 2 --method topk,dense --density 0.5 --rank 4 --epochs 7 --batch-size 3 \
                 --seed 9 --hidden 20,10 --learning-rate 0.01 --momentum 0.9 --json a.json --plot b.svg";
    let arguments = parse(words).unwrap();
    assert_eq!(arguments.method, [Method::Topk, Method::Dense]);
    assert_eq!(arguments.json.as_deref(), Some(Path::new("a.json")));
    assert_eq!(arguments.plot.as_deref(), Some(Path::new("b.svg")));
    let settings = arguments.settings(&digits::load()).unwrap();
    let expected = Settings {
        epochs: 7,
        batch_size: 3,
        hidden: vec![20, 10],
        learning_rate: 0.01,
        momentum: 0.9,
        seed: 9,
        evaluations: EVALUATIONS,
    };
    assert_eq!(settings, expected);
}

#[test]
fn numbers_out_of_range_are_refused() {
    for (words, line) in [
        ("--async dgs --momentum 0", "--momentum is 0, expected above 0 for dgs"),
        (
            "--async dgs --rule adagrad",
            "--rule is adagrad, expected sgd for dgs, whose momentum contains the rate",
        ),
        ("--async asgd --servers 4", "--servers is 4, expected fewer than the 4 ranks"),
        ("--async asgd --secondary-density 0", "--secondary-density is 0, expected above 0 and at most 1"),
        (
            "--async dgs --servers 1 --secondary-density 0",
            "--secondary-density is 0, expected above 0 and at most 1",
        ),
        (
            "--async asgd --servers 1 --secondary-density 0.5",
            "--secondary-density is 0.5, expected none for asgd: its servers answer with the whole model",
        ),
        ("--async asgd --simulate 0", "--simulate is 0, expected a speed in Gbit/s, at least 0.000001"),
        (
            "--async asgd --simulate 1e-7",
            "--simulate is 0.0000001, expected a speed in Gbit/s, at least 0.000001",
        ),
        (
            "--async asgd --straggler 1:1e5 --straggler 1:1e5",
            "--straggler is 10000000000, expected a factor of at most 1000000 for each rank",
        ),
        (
            "--async asgd --servers 1 --straggler 3:2",
            "--straggler is 3, expected a rank that trains, below 3",
        ),
        ("--density 0", "--density is 0, expected above 0 and at most 1"),
        ("--density 2", "--density is 2, expected above 0 and at most 1"),
        ("--density -0.1", "--density is -0.1, expected above 0 and at most 1"),
        ("--density NaN", "--density is NaN, expected above 0 and at most 1"),
        ("--ranks 0", "--ranks is 0, expected at least 1"),
        ("--rank 0", "--rank is 0, expected at least 1"),
        ("--epochs 0", "--epochs is 0, expected at least 1"),
        ("--hidden 12,0", "--hidden is 0, expected at least 1"),
        ("--batch-size 0", "--batch-size is 0, expected at least 1"),
        ("--learning-rate 0", "--learning-rate is 0, expected above 0"),
        ("--learning-rate inf", "--learning-rate is inf, expected above 0"),
        ("--momentum 1", "--momentum is 1, expected at least 0 and below 1"),
    ] {
        assert_eq!(refusal(words), line);
    }
}

#[test]
fn methods_with_other_steps_have_other_default_rates() {
    let rates = |words: &str| {
        let arguments = parse(words).unwrap();
        let settings = arguments.settings(&digits::load()).unwrap();
        [Method::OneBit, Method::Signum, Method::Dgc]
            .map(|of| arguments.settings_of(of, &settings).learning_rate)
    };
    assert_eq!(rates(""), [0.2, 0.2 * SIGNUM_RATE, 0.2 * DGC_RATE]);
    assert_eq!(rates("--learning-rate 0.5"), [0.5; 3]);
}

#[test]
fn a_batch_must_fit_its_shard() {
    assert!(parse("--batch-size 359").unwrap().settings(&digits::load()).is_ok());
    let line = refusal("--batch-size 360");
    assert!(line.starts_with("--batch-size is 360, expected at most 359: digits has 1438"), "{line}");
    let line = refusal("--ranks 1000");
    assert!(line.starts_with("--ranks is 1000, expected fewer: digits has 1438"), "{line}");
}

#[test]
fn words_that_mean_nothing_are_refused() {
    let line = refusal("--method dense,zip");
    assert!(line.contains("'zip'") && line.contains("gtopk, gtopk-published"), "{line}");
    assert!(refusal("--ranks many").contains("'many'"));
    for flag in ["--ranks", "--epochs", "--batch-size", "--hidden", "--seed", "--servers", "--staleness"] {
        let line = refusal(&format!("--async dgs {flag} -1"));
        assert!(line.contains("'-1'") && line.contains("at least 0"), "{line}");
    }
    assert!(refusal("--async dgs --straggler -1:2").contains("RANK:FACTOR"));
    assert!(refusal("--speed 9").contains("'--speed'"));
    for factor in ["0.5", "1e7", "NaN"] {
        assert!(refusal(&format!("--async asgd --straggler 1:{factor}")).contains("RANK:FACTOR"));
    }
    assert!(refusal("--async asgd --method dense").contains("--method"));
    assert!(refusal("--servers 1").contains("--async"));
    assert!(refusal("--data /no/such/folder").contains("/no/such/folder: no such folder"));
    assert!(refusal("--plot a.png").contains("FILE.svg"));
}
