//! Policies and their texts.

use brevity_compress::quantise::Magnitude;

use super::*;

#[test]
fn policies_survive_their_text() {
    for (text, policy) in [
        ("dense", Policy::dense()),
        ("auto", Policy::auto()),
        ("auto:0.01", Policy::auto().density(0.01)),
        ("topk:0.01,scope=bucket", Policy::topk(0.01).scope(Scope::Bucket)),
        (
            "oktopk:0.01,threshold=sampled,scope=model,samomentum=0.5,dense-steps=7",
            Policy::oktopk(0.01)
                .threshold(Threshold::Sampled)
                .scope(Scope::Model)
                .samomentum(0.5)
                .dense_steps(7),
        ),
        ("block:0.5,dense-steps=1", Policy::block(0.5).dense_steps(1)),
        ("topk:0.01", Policy::topk(0.01)),
        ("topk:0.01,values=bf16", Policy::topk(0.01).values(Values::Bf16)),
        ("topk:0.01,values=f32", Policy::topk(0.01).values(Values::F32)),
        ("oktopk:0.01,values=pairs", Policy::oktopk(0.01).pairs()),
        ("gtopk:0.0000001", Policy::gtopk(1e-7)),
        ("gtopk:1,put-back=published", Policy::gtopk(1.0).put_back(PutBack::Published)),
        ("gtopk:0.5,put-back=merger-keeps", Policy::gtopk(0.5).put_back(PutBack::MergerKeeps)),
        (
            "gtopk:0.5,values=one-bit-mean,put-back=published",
            Policy::gtopk(0.5).values(Values::OneBit(Magnitude::Mean)).put_back(PutBack::Published),
        ),
        ("topk:0.001,momentum=0.9", Policy::topk(0.001).momentum(0.9)),
        (
            "gtopk:0.001,put-back=published,momentum=0.9,nesterov=yes,clip=2.5",
            Policy::gtopk(0.001).put_back(PutBack::Published).momentum(0.9).nesterov().clip(2.5),
        ),
        ("topk:0.01,momentum=0,clip=1", Policy::topk(0.01).clip(1.0)),
        ("topk:0.01,values=f16,samomentum=0.7", Policy::topk(0.01).values(Values::F16).samomentum(0.7)),
        ("oktopk:0.01,values=bf16,momentum=0.9", Policy::oktopk(0.01).values(Values::Bf16).momentum(0.9)),
        ("topk:0.01,threshold=sampled", Policy::topk(0.01).threshold(Threshold::Sampled)),
        (
            "gtopk:0.01,put-back=published,threshold=adaptive,momentum=0.9",
            Policy::gtopk(0.01).put_back(PutBack::Published).threshold(Threshold::Adaptive).momentum(0.9),
        ),
        ("topk:0.01,values=bf16,hierarchical=yes", Policy::topk(0.01).values(Values::Bf16).hierarchical()),
        (
            "gtopk:0.5,put-back=published,hierarchical=yes",
            Policy::gtopk(0.5).put_back(PutBack::Published).hierarchical(),
        ),
        ("oktopk:0.01,threshold=exact", Policy::oktopk(0.01).threshold(Threshold::Exact)),
        ("topk:0.01,threshold=0.00025", Policy::topk(0.01).threshold(Threshold::Fixed(0.00025))),
        ("random-k:0.01", Policy::random_k(0.01)),
        ("random-block:0.5,samomentum=0.5", Policy::random_block(0.5).samomentum(0.5)),
        ("block:1", Policy::block(1.0)),
        ("low-rank:4", Policy::low_rank(4)),
        ("low-rank:1,min=3.5", Policy::low_rank(1).min_compression(3.5)),
        ("low-rank:2,post-momentum=0.9", Policy::low_rank(2).post_momentum(0.9)),
        ("low-rank:2,min=1.5,post-momentum=0", Policy::low_rank(2).min_compression(1.5).post_momentum(0.0)),
        ("unbiased-low-rank:2", Policy::unbiased_low_rank(2)),
        ("best-low-rank:3,min=1", Policy::best_low_rank(3).min_compression(1.0)),
        ("atomo:4,post-momentum=0.5", Policy::atomo(4).post_momentum(0.5)),
        ("sign-norm", Policy::sign_norm()),
        ("quantised:eight-bit", Policy::quantised(Values::EightBit)),
        ("quantised:two-bit-mean", Policy::quantised(Values::TwoBit(Magnitude::Mean))),
        ("quantised:ternary", Policy::quantised(Values::Ternary)),
        ("quantised:qsgd-7", Policy::quantised(Values::Qsgd(7))),
        ("quantised:one-bit-columns", Policy::quantised(Values::OneBitColumns(0))),
        ("gtopk:0.01,values=qsgd-127", Policy::gtopk(0.01).values(Values::Qsgd(127))),
        ("oktopk:0.01,values=one-bit-columns-9", Policy::oktopk(0.01).values(Values::OneBitColumns(9))),
        ("signum:0.9", Policy::signum(0.9)),
        ("signum:0", Policy::signum(0.0)),
    ] {
        assert_eq!(policy.to_string(), text);
        assert_eq!(text.parse::<Policy>().unwrap(), policy, "{text}");
    }
    let spaced = "gtopk:0.5, put-back=conserving".parse::<Policy>().unwrap();
    assert_eq!(spaced.to_string(), "gtopk:0.5", "a default is not written");
}

#[test]
fn what_is_no_policy_is_refused_with_what_is_expected() {
    const LOW_RANK: &str = "only min=FACTOR, post-momentum=FACTOR and dense-steps=N after the method";
    for (text, expected) in [
        ("", METHODS),
        ("zip", METHODS),
        ("dense:1", "dense without a number"),
        ("auto:0", "auto:DENSITY, with a density above 0 and at most 1"),
        ("topk:0.1,scope=rank", "scope=SCOPE, with one of tensor, bucket, model"),
        ("topk:0.1,dense-steps=-1", "dense-steps=N, with a number of steps"),
        ("topk", "topk:DENSITY, with a density above 0 and at most 1"),
        ("topk:0", "topk:DENSITY, with a density above 0 and at most 1"),
        ("gtopk:NaN", "gtopk:DENSITY, with a density above 0 and at most 1"),
        ("low-rank:0", "low-rank:RANK, with a rank of at least 1"),
        ("atomo", "atomo:RANK, with a rank of at least 1"),
        ("sign-norm:2", "sign-norm without a number"),
        ("sign-norm,min=2", "nothing after the method"),
        ("low-rank:-1", "low-rank:RANK, with a rank of at least 1"),
        ("low-rank:2,min=0", "min=FACTOR, with a factor above 0"),
        ("low-rank:2,min=inf", "min=FACTOR, with a factor above 0"),
        ("low-rank:2,min", "min=FACTOR, with a factor above 0"),
        ("low-rank:2,put-back=published", LOW_RANK),
        ("low-rank:2,post-momentum=1", "post-momentum=FACTOR, with a factor of at least 0 and below 1"),
        ("low-rank:2,momentum=0.9", LOW_RANK),
        ("gtopk:0.1,put-back=all", "put-back=RULE, with one of conserving, published, merger-keeps"),
        (
            "gtopk:0.1,min=2",
            "only values=FORMAT, put-back=RULE, threshold=T, scope=SCOPE, hierarchical=yes, \
             momentum=FACTOR, nesterov=yes, clip=NORM, samomentum=FACTOR and dense-steps=N after the \
             method",
        ),
        ("topk:0.1,momentum=1", "momentum=FACTOR, at least 0 and less than 1, without samomentum"),
        (
            "topk:0.1,samomentum=0.5,momentum=0.5",
            "momentum=FACTOR, at least 0 and less than 1, without samomentum",
        ),
        ("topk:0.1,nesterov=yes", "nesterov=yes, after momentum=FACTOR"),
        ("topk:0.1,momentum=0.5,nesterov=no", "nesterov=yes, after momentum=FACTOR"),
        ("topk:0.1,clip=0", "clip=NORM, above 0, without samomentum"),
        ("topk:0.1,clip=NaN", "clip=NORM, above 0, without samomentum"),
        (
            "topk:0.1,samomentum=0",
            "samomentum=FACTOR, more than 0 and less than 1, without momentum and clip",
        ),
        ("dense,momentum=0.5", "nothing after the method"),
        ("gtopk:0.1,put-back=published,put-back=published", "put-back once"),
        (
            "topk:0.1,put-back=published",
            "only values=FORMAT, threshold=T, scope=SCOPE, hierarchical=yes, momentum=FACTOR, \
             nesterov=yes, clip=NORM, samomentum=FACTOR and dense-steps=N after the method",
        ),
        (
            "topk:0.1,values=bf17",
            "values=FORMAT, with one of pairs, f32, f16, bf16, eight-bit, one-bit-mean, one-bit-min, \
             two-bit-mean, two-bit-min, one-bit-columns, one-bit-columns-C, ternary, qsgd-S",
        ),
        ("topk:0.1,hierarchical=no", "hierarchical=yes"),
        (
            "oktopk:0.1,hierarchical=yes",
            "only values=FORMAT, threshold=T, scope=SCOPE, momentum=FACTOR, nesterov=yes, clip=NORM, \
             samomentum=FACTOR and dense-steps=N after the method",
        ),
        ("topk:0.1,threshold=0", THRESHOLD),
        ("topk:0.1,threshold=inf", THRESHOLD),
        ("oktopk:0.1,threshold=half", THRESHOLD),
        ("oktopk:0", "oktopk:DENSITY, with a density above 0 and at most 1"),
        ("random-k", "random-k:DENSITY, with a density above 0 and at most 1"),
        ("block:-1", "block:DENSITY, with a density above 0 and at most 1"),
        (
            "random-block:0.1,values=bf16",
            "only momentum=FACTOR, nesterov=yes, clip=NORM, samomentum=FACTOR and dense-steps=N after \
             the method",
        ),
        ("dense,", "nothing after the method"),
        (
            "quantised",
            "quantised:FORMAT, with one of f32, f16, bf16, eight-bit, one-bit-mean, two-bit-mean, \
             one-bit-columns, one-bit-columns-C, ternary, qsgd-S",
        ),
        ("quantised:bf16,values=f16", "nothing after the method"),
        ("signum", "signum:MOMENTUM, with a momentum of at least 0 and below 1"),
        ("signum:1", "signum:MOMENTUM, with a momentum of at least 0 and below 1"),
        ("signum:-0.5", "signum:MOMENTUM, with a momentum of at least 0 and below 1"),
        ("signum:NaN", "signum:MOMENTUM, with a momentum of at least 0 and below 1"),
        ("signum:0.9,min=2", "nothing after the method"),
    ] {
        let error = text.parse::<Policy>().unwrap_err();
        assert_eq!(error.to_string(), format!("{text:?} is no policy: expected {expected}"));
    }
}
