//! Policies of C programs.

use super::*;

fn policy(method: brv_method) -> brv_policy {
    let size = size_of::<brv_policy>() as u32;
    let (density, rank, put_back, min_compression) = (0.5, 2, 0, 0.0);
    let (values, momentum_rule, momentum, clip) = (0, 0, 0.0, 0.0);
    let (selection, unused, threshold, post_momentum, reserved) = (0, 0, 0.0, 0.0, [0; 2]);
    brv_policy {
        size,
        method,
        density,
        rank,
        put_back,
        min_compression,
        values,
        momentum_rule,
        momentum,
        clip,
        selection,
        unused,
        threshold,
        post_momentum,
        reserved,
    }
}

fn read_with(method: brv_method, change: impl Fn(&mut brv_policy)) -> Result<Policy, String> {
    let mut policy = policy(method);
    change(&mut policy);
    // SAFETY: the policy is a local variable.
    unsafe { read(&raw const policy) }.map_err(|failure| failure.text().to_owned())
}

#[test]
fn each_method_takes_its_own_fields() {
    let plain = |method| read_with(method, |_| ()).unwrap();
    assert_eq!(plain(DENSE), Policy::dense());
    assert_eq!(plain(TOPK), Policy::topk(0.5));
    assert_eq!(plain(GTOPK), Policy::gtopk(0.5));
    assert_eq!(plain(LOW_RANK), Policy::low_rank(2));
    let published = read_with(GTOPK, |policy| policy.put_back = 1).unwrap();
    assert_eq!(published, Policy::gtopk(0.5).put_back(PutBack::Published));
    let keeps = read_with(GTOPK, |policy| policy.put_back = 2).unwrap();
    assert_eq!(keeps, Policy::gtopk(0.5).put_back(PutBack::MergerKeeps));
    let far = read_with(LOW_RANK, |policy| policy.min_compression = 3.5).unwrap();
    assert_eq!(far, Policy::low_rank(2).min_compression(3.5));
    for number in 1..8 {
        let expected = Policy::topk(0.5).values(values(number).unwrap());
        assert_eq!(read_with(TOPK, |policy| policy.values = number).unwrap(), expected);
        let expected = Policy::gtopk(0.5).values(values(number).unwrap());
        assert_eq!(read_with(GTOPK, |policy| policy.values = number).unwrap(), expected);
    }
    for method in [TOPK, GTOPK, OK_TOPK] {
        let plain = plain(method);
        let with = |number| read_with(method, |policy| policy.values = number).unwrap();
        let expected = [plain, plain.values(Values::F32), plain.pairs()];
        assert_eq!([CHOSEN, F32_PACKED, PAIRS].map(with), expected);
    }
    for (number, expected) in [
        (9, Values::Ternary),
        (10, Values::Qsgd(7)),
        (11, Values::Qsgd(127)),
        (12, Values::OneBitColumns(0)),
        (0x1002, Values::Qsgd(2)),
        (0x107f, Values::Qsgd(127)),
        (0x4000_0001, Values::OneBitColumns(1)),
        (0x7fff_ffff, Values::OneBitColumns(0x3fff_ffff)),
    ] {
        let read = read_with(QUANTISED, |policy| policy.values = number);
        assert_eq!(read, Ok(Policy::quantised(expected)), "{number:#x}");
    }
    for number in [13, 0x1000, 0x1001, 0x1080, 0x4000_0000, 0x8000_0000, u32::MAX] {
        assert_eq!(values(number), None, "{number:#x}");
    }
    let eight_bit = read_with(QUANTISED, |policy| policy.values = 7).unwrap();
    assert_eq!(eight_bit, Policy::quantised(Values::EightBit));
    assert_eq!(read_with(SIGNUM, |_| ()).unwrap(), Policy::signum(0.0));
    assert_eq!(read_with(SIGNUM, |policy| policy.momentum = 0.9).unwrap(), Policy::signum(0.9));
    let momentum = |rule, clip| {
        let set = |policy: &mut brv_policy| {
            (policy.momentum_rule, policy.momentum, policy.clip) = (rule, 0.5, clip);
        };
        read_with(TOPK, set).unwrap()
    };
    assert_eq!(momentum(0, 0.0), Policy::topk(0.5));
    assert_eq!(momentum(0, 2.0), Policy::topk(0.5).clip(2.0));
    assert_eq!(momentum(1, 2.0), Policy::topk(0.5).momentum(0.5).clip(2.0));
    assert_eq!(momentum(2, 0.0), Policy::topk(0.5).momentum(0.5).nesterov());
    assert_eq!(momentum(3, 0.0), Policy::topk(0.5).samomentum(0.5));
    let unused = |policy: &mut brv_policy| {
        (policy.density, policy.rank, policy.put_back, policy.values) = (-1.0, 0, 9, 99);
        policy.momentum = -1.0;
    };
    assert_eq!(read_with(DENSE, unused), Ok(Policy::dense()));
    // SAFETY: NULL may be read.
    assert_eq!(unsafe { read(std::ptr::null()) }.ok(), Some(Policy::dense()));
}

#[test]
fn every_method_of_rust_has_a_number() {
    let plain = |method| read_with(method, |_| ()).unwrap().to_string();
    let names: Vec<String> =
        (DENSE..=EXCLUDED).filter(|method| ![QUANTISED, SIGNUM].contains(method)).map(plain).collect();
    assert_eq!(
        names,
        [
            "dense",
            "topk:0.5",
            "gtopk:0.5",
            "low-rank:2",
            "oktopk:0.5",
            "random-k:0.5",
            "random-block:0.5",
            "block:0.5",
            "unbiased-low-rank:2",
            "best-low-rank:2",
            "atomo:2",
            "sign-norm",
            "excluded"
        ]
    );
}

#[test]
fn thresholds_and_momenta_after_aggregation_are_those_of_rust() {
    for method in [TOPK, GTOPK, OK_TOPK] {
        let with = |selection| {
            let set = |policy: &mut brv_policy| {
                (policy.selection, policy.threshold) = (selection, 0.25);
            };
            read_with(method, set).unwrap()
        };
        let plain = with(0);
        assert_eq!(with(1), plain.threshold(Threshold::Exact));
        assert_eq!(with(2), plain.threshold(Threshold::Sampled));
        assert_eq!(with(3), plain.threshold(Threshold::Adaptive));
        assert_eq!(with(4), plain.threshold(Threshold::Fixed(0.25)));
    }
    for method in [RANDOM_K, RANDOM_BLOCK, BLOCK] {
        let ignored = |policy: &mut brv_policy| {
            (policy.selection, policy.values, policy.put_back) = (9, 9, 9);
        };
        assert_eq!(read_with(method, ignored), read_with(method, |_| ()), "{method}");
        let moved = read_with(method, |policy| (policy.momentum_rule, policy.momentum) = (1, 0.5));
        assert_eq!(moved.unwrap(), read_with(method, |_| ()).unwrap().momentum(0.5));
    }
    for method in [LOW_RANK, UNBIASED_LOW_RANK, BEST_LOW_RANK, ATOMO] {
        let moved = read_with(method, |policy| policy.post_momentum = 0.5).unwrap();
        assert_eq!(moved, read_with(method, |_| ()).unwrap().post_momentum(0.5));
    }
}

#[test]
fn wrong_fields_are_named() {
    let refused = |method, field: &str, change: fn(&mut brv_policy)| {
        let text = read_with(method, change).unwrap_err();
        assert!(text.contains(&format!("policy.{field} is ")), "{text}");
    };
    refused(DENSE, "size", |policy| policy.size -= 1);
    refused(0, "method", |_| ());
    refused(EXCLUDED + 1, "method", |_| ());
    for method in [TOPK, GTOPK, OK_TOPK, RANDOM_K, RANDOM_BLOCK, BLOCK] {
        refused(method, "density", |policy| policy.density = 0.0);
        refused(method, "density", |policy| policy.density = f64::NAN);
        refused(method, "density", |policy| policy.density = 1.5);
    }
    refused(TOPK, "values", |policy| policy.values = PAIRS + 1);
    refused(GTOPK, "values", |policy| policy.values = PAIRS + 1);
    refused(QUANTISED, "values", |policy| policy.values = F32_PACKED);
    refused(QUANTISED, "values", |policy| policy.values = PAIRS);
    refused(SIGNUM, "momentum", |policy| policy.momentum = 1.0);
    refused(SIGNUM, "momentum", |policy| policy.momentum = 1.0 - 1e-12);
    refused(SIGNUM, "momentum", |policy| policy.momentum = f64::NAN);
    refused(GTOPK, "put_back", |policy| policy.put_back = 3);
    refused(LOW_RANK, "rank", |policy| policy.rank = 0);
    refused(LOW_RANK, "min_compression", |policy| policy.min_compression = -2.0);
    refused(LOW_RANK, "min_compression", |policy| policy.min_compression = f64::NAN);
    for method in [TOPK, GTOPK] {
        refused(method, "momentum_rule", |policy| policy.momentum_rule = 4);
        refused(method, "momentum", |policy| (policy.momentum_rule, policy.momentum) = (1, 1.0));
        refused(method, "momentum", |policy| (policy.momentum_rule, policy.momentum) = (3, 0.0));
        refused(method, "clip", |policy| policy.clip = -1.0);
        refused(method, "clip", |policy| policy.clip = f64::NAN);
        refused(method, "clip", |policy| {
            (policy.momentum_rule, policy.momentum, policy.clip) = (3, 0.5, 1.0);
        });
    }
    for method in [TOPK, GTOPK, OK_TOPK] {
        refused(method, "selection", |policy| policy.selection = 5);
        for threshold in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300, 1e300] {
            let set = |policy: &mut brv_policy| {
                (policy.selection, policy.threshold) = (4, threshold);
            };
            let text = read_with(method, set).unwrap_err();
            assert!(text.contains("policy.threshold is "), "{text}");
        }
    }
    for method in [LOW_RANK, UNBIASED_LOW_RANK, BEST_LOW_RANK, ATOMO] {
        refused(method, "rank", |policy| policy.rank = 0);
        for factor in [-0.5, 1.0, 1.0 - 1e-12, f64::NAN] {
            let text = read_with(method, |policy| policy.post_momentum = factor).unwrap_err();
            assert!(text.contains("policy.post_momentum is "), "{text}");
        }
    }
    assert!(read_with(DENSE, |policy| policy.reserved[1] = 1).unwrap_err().contains("reserved"));
    assert!(read_with(DENSE, |policy| policy.unused = 1).unwrap_err().contains("reserved"));
}
