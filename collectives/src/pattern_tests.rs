use super::*;

#[test]
fn rings_close() {
    for world_size in 1..=33 {
        for rank in 0..world_size {
            assert_eq!(ring_predecessor(ring_successor(rank, world_size), world_size), rank);
            assert_eq!(ring_chunk(rank, 0, world_size), rank as usize);
            assert_eq!(ring_chunk(rank, 1, world_size), ring_predecessor(rank, world_size) as usize);
            assert_eq!(ring_chunk(rank, world_size, world_size), rank as usize);
        }
    }
}

#[test]
fn chunks_cover_everything_once() {
    for world_size in 1..=33 {
        for count in [0, 1, 2, 31, 32, 33, 1000] {
            let mut next = 0;
            for index in 0..world_size as usize {
                let range = chunk_range(count, world_size, index);
                assert_eq!(range.start, next.min(count));
                next = range.end;
            }
            assert_eq!(next, count);
        }
    }
}

#[test]
fn every_rank_but_the_root_has_one_parent_that_knows_it() {
    for world_size in 1..=33 {
        for root in 0..world_size {
            let mut found = 0;
            for rank in 0..world_size {
                let place = Binomial::new(rank, root, world_size);
                match place.parent() {
                    None => assert_eq!(rank, root),
                    Some((parent, round)) => {
                        let children: Vec<_> = Binomial::new(parent, root, world_size).children().collect();
                        assert!(children.contains(&(rank, round)), "P={world_size} root={root} rank={rank}");
                    }
                }
                let rounds: Vec<_> = place.children().map(|(_, round)| round).collect();
                assert!(
                    rounds.is_sorted() && rounds.iter().all(|&round| round < doubling_rounds(world_size))
                );
                found += rounds.len();
            }
            assert_eq!(found as u32, world_size - 1);
        }
    }
}

#[test]
fn a_parent_hears_a_child_after_the_child_has_heard_its_own() {
    for world_size in 1..=33 {
        for rank in 0..world_size {
            let place = Binomial::new(rank, 0, world_size);
            if let Some((_, round)) = place.parent() {
                assert!(place.children().all(|(_, earlier)| earlier < round));
            }
        }
    }
}

#[test]
fn a_tree_of_any_radix_reaches_every_rank_once() {
    for world_size in 1..=70 {
        for (radix, root) in [(2, 0), (3, 1), (4, world_size - 1), (8, world_size / 2)] {
            let place = |rank| Knomial::new(rank, root % world_size, world_size, radix);
            let mut found = 0;
            for rank in 0..world_size {
                for (child, round) in place(rank).children() {
                    assert_eq!(place(child).parent(), Some((rank, round)), "P={world_size} radix {radix}");
                    found += 1;
                }
                assert_eq!(place(rank).parent().is_none(), rank == root % world_size);
                if radix == 2 {
                    let binomial = Binomial::new(rank, root % world_size, world_size);
                    assert!(binomial.children().eq(place(rank).children()));
                }
            }
            assert_eq!(found, world_size - 1);
        }
    }
}

/// What a rank has after its part, as an expression of all operands, the smaller side first.
fn expression(rank: u32, root: u32, world_size: u32, radix: u32) -> String {
    let tree = SumTree::new(rank, root, world_size, radix);
    let mut own = format!("{rank:02}");
    let node = |a: String, b: String| if a < b { format!("({a}{b})") } else { format!("({b}{a})") };
    if let Some(guest) = tree.guest {
        own = node(own, format!("{guest:02}"));
    }
    for level in tree.levels {
        let mut stage = vec![own];
        for child in level.children {
            let towards = Towards::Root { parent: rank, round: level.round };
            assert_eq!(SumTree::new(child, root, world_size, radix).towards, towards);
            stage.push(expression(child, root, world_size, radix));
        }
        while stage.len() > 1 {
            stage = stage.chunks_exact(2).map(|pair| node(pair[0].clone(), pair[1].clone())).collect();
        }
        own = stage.remove(0);
    }
    own
}

#[test]
fn reductions_to_every_root_have_one_order() {
    for world_size in 1..=33 {
        let expected = expression(0, 0, world_size, 2);
        for root in 0..world_size {
            for radix in [2, 4, 8] {
                assert_eq!(SumTree::new(root, root, world_size, radix).towards, Towards::Nobody);
                assert_eq!(
                    expression(root, root, world_size, radix),
                    expected,
                    "P={world_size} root={root} radix={radix}"
                );
            }
        }
    }
    assert_eq!(expression(5, 5, 6, 2), "(((0004)(0105))(0203))");
}

#[test]
fn doubling_pairs_guests_with_members_and_members_with_each_other() {
    for world_size in 1..=33u32 {
        let half = 1 << world_size.ilog2();
        for rank in 0..world_size {
            let member = match Doubling::new(rank, world_size) {
                Doubling::Guest { keeper } => {
                    assert_eq!(keeper + half, rank);
                    let keeper = Doubling::new(keeper, world_size);
                    assert!(matches!(keeper, Doubling::Member(member) if member.guest == Some(rank)));
                    continue;
                }
                Doubling::Member(member) => member,
            };
            assert!(rank < half);
            assert!(member.guest.is_none_or(|guest| {
                Doubling::new(guest, world_size) == Doubling::Guest { keeper: rank }
            }));
            for (round, partner) in member.partners().enumerate() {
                let Doubling::Member(partner) = Doubling::new(partner, world_size) else { panic!("a guest") };
                assert_eq!(partner.partners().nth(round), Some(rank));
            }
        }
    }
}

#[test]
fn after_all_rounds_of_doubling_every_member_has_everything() {
    for world_size in 1..=33u32 {
        let parts = (0..world_size).map(|rank| Doubling::new(rank, world_size));
        let mut known: Vec<Vec<u32>> = (0..world_size).map(|rank| vec![rank]).collect();
        let mut partners: Vec<Vec<u32>> = Vec::new();
        for (rank, part) in parts.enumerate() {
            partners.push(match part {
                Doubling::Guest { .. } => Vec::new(),
                Doubling::Member(member) => {
                    known[rank].extend(member.guest);
                    member.partners().collect()
                }
            });
        }
        for round in 0..world_size.ilog2() as usize {
            let before = known.clone();
            for (rank, partners) in partners.iter().enumerate() {
                known[rank]
                    .extend(partners.get(round).iter().flat_map(|partner| &before[**partner as usize]));
            }
        }
        for (rank, known) in known.iter_mut().enumerate().filter(|(rank, _)| !partners[*rank].is_empty()) {
            known.sort_unstable();
            assert_eq!(*known, (0..world_size).collect::<Vec<_>>(), "P = {world_size}, rank {rank}");
        }
    }
}

#[test]
fn rounds_are_logarithms_rounded_up() {
    for (world_size, rounds) in [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (1024, 10)] {
        assert_eq!(doubling_rounds(world_size), rounds);
    }
}
