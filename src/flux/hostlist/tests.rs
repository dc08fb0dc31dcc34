use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<Vec<String>, HostlistError> {
    text.parse::<Hostlist>().map(|list| list.hosts)
}

#[test]
fn vectors_of_rfc_29() {
    for (text, hosts) in [
        ("", ""),
        ("foox,fooy,fooz", "foox,fooy,fooz"),
        ("[1-3,5-6]", "1,2,3,5,6"),
        ("foo[1-5]", "foo1,foo2,foo3,foo4,foo5"),
        ("foo[0-4]-eth2", "foo0-eth2,foo1-eth2,foo2-eth2,foo3-eth2,foo4-eth2"),
        ("foo1,foo1,foo1", "foo1,foo1,foo1"),
        ("[00-02]", "00,01,02"),
        ("[00-2]", "00,01,02"),
        ("foo[1,1,2,1]", "foo1,foo1,foo2,foo1"),
        ("x[005,4,11-13]", "x005,x004,x011,x012,x013"),
    ] {
        assert_eq!(parse(text).unwrap().join(","), hosts, "{text}");
    }
}

#[test]
fn written_as_flux_writes_it() {
    // flux-core src/common/libhostlist/test/hostlist.c
    for (text, compact, count) in [
        ("foo-1a-2,foo-1a-3", "foo-1a-[2-3]", 2),
        ("foo1,foo2,foo3,fooi", "foo[1-3],fooi", 4),
        ("foo1,fooi,foo2,foo3", "foo1,fooi,foo[2-3]", 4),
        ("fooi,foo1,foo2,foo3,foo5,foo7,foo8", "fooi,foo[1-3,5,7-8]", 7),
        (",1,2,3,4,5,9,", "[1-5,9]", 6),
        ("foo[1,3]-bar", "foo1-bar,foo3-bar", 2),
        ("p[00-3]p", "p00p,p01p,p02p,p03p", 4),
        ("14636", "14636", 1),
        ("foo[12,4,1-2],bar[26-30]", "foo[12,4,1-2],bar[26-30]", 9),
        // Ours: the list a MiniCluster of one broker has upstream, and what separates users' lists.
        ("flux-sample-[0]", "flux-sample-0", 1),
        ("a-[0-3,7],b-0", "a-[0-3,7],b-0", 6),
        ("a-0, a-1\ta-2", "a-[0-2]", 3),
        // Padding is never mixed within brackets.
        ("n1,n02,n3", "n1,n02,n3", 3),
        ("n08,n09,n10,n100", "n[08-10,100]", 4),
        ("n0,n00,n1", "n0,n00,n1", 3),
        ("n1234567890123456789,n1234567890123456790", "n1234567890123456789,n1234567890123456790", 2),
    ] {
        let list: Hostlist = text.parse().unwrap();
        assert_eq!(list.to_string(), compact, "{text}");
        assert_eq!(list.len(), count, "{text}");
    }
}

#[test]
fn errors_say_where() {
    use HostlistError::{Bracket, Character, Id, Reversed};
    for (text, error) in [
        ("[]", Id { at: 1 }),
        ("foo[]", Id { at: 4 }),
        ("foo[", Bracket { at: 3 }),
        ("foo[1,3", Bracket { at: 3 }),
        ("foo[[1,3]", Bracket { at: 4 }),
        ("foo]", Bracket { at: 3 }),
        ("a,foo]", Bracket { at: 5 }),
        ("foo[1]-[2]", Bracket { at: 7 }),
        ("foo[x-y]", Id { at: 4 }),
        ("foo[0-1,2--5]", Id { at: 10 }),
        ("foo[0-1,-5]", Id { at: 8 }),
        ("foo[0-]", Id { at: 6 }),
        ("foo[1 ,2]", Id { at: 4 }),
        ("foo[0--1]", Id { at: 6 }),
        ("burst-[1-0]", Reversed { at: 7 }),
        ("foo[0-9999999999999999999]", Id { at: 6 }),
        ("a-0,b\u{e9}", Character { at: 5, found: 'é' }),
        ("a[0-1]\u{7f}", Character { at: 6, found: '\u{7f}' }),
    ] {
        assert_eq!(parse(text), Err(error), "{text}");
    }
}

#[test]
fn expansion_is_capped() {
    assert_eq!(parse("a[0-16383]").unwrap().len(), MAX_HOSTS);
    assert_eq!(parse("a[0-16384]"), Err(HostlistError::TooMany { at: 0 }));
    assert_eq!(parse("b,a[0-999999999999999999]"), Err(HostlistError::TooMany { at: 2 }));
    let long = "a".repeat(MAX_HOST_LEN);
    assert_eq!(parse(&long).unwrap().join(","), long);
    assert_eq!(parse(&format!("{long}[0-16383]")), Err(HostlistError::TooLong { at: 0 }));
}

#[test]
fn brackets_hold_fewer_ranges_than_flux_reads() {
    let list = Hostlist::from_hosts((0..3_000).map(|i| format!("a{}", 2 * i))).unwrap();
    let text = list.to_string();
    assert_eq!(text.matches('[').count(), 3);
    assert_eq!(text.parse::<Hostlist>().unwrap(), list);
}

#[test]
fn names_that_no_list_can_hold_are_refused() {
    for host in ["", "a,b", "a b", "a[0]", "é", &"a".repeat(254)] {
        assert_eq!(Hostlist::from_hosts([host]), Err(HostlistError::Host { host: host.to_owned() }));
    }
    assert_eq!(Hostlist::from_hosts(vec!["a"; MAX_HOSTS + 1]), Err(HostlistError::TooMany { at: MAX_HOSTS }));
}

/// How flux-core reads a list without suffixes behind brackets: every range has the width of its own first number.
fn expand_like_flux_core(text: &str) -> Vec<String> {
    let mut hosts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = match (rest.find(','), rest.find('[')) {
            (comma, Some(open)) if comma.is_none_or(|comma| open < comma) => rest.find(']').unwrap() + 1,
            (comma, _) => comma.unwrap_or(rest.len()),
        };
        let (token, tail) = rest.split_at(end);
        rest = tail.strip_prefix(',').unwrap_or(tail);
        let Some((prefix, ids)) = token.trim_end_matches(']').split_once('[') else {
            hosts.push(token.to_owned());
            continue;
        };
        for range in ids.split(',') {
            let (low, high) = range.split_once('-').unwrap_or((range, range));
            let width = low.len();
            let (low, high): (u64, u64) = (low.parse().unwrap(), high.parse().unwrap());
            hosts.extend((low..=high).map(|id| format!("{prefix}{id:0width$}")));
        }
    }
    hosts
}

fn any_host() -> impl Strategy<Value = String> {
    // Few prefixes and small numbers, so that neighbours meet; widths, so that padding does.
    let numbered = ("(a|a-|b-0-|)", 0_u64..120, 0_usize..4).prop_map(|(p, id, width)| format!("{p}{id:0width$}"));
    prop_oneof![8 => numbered, 1 => "[!-+./0-9:-Z^-~-]{1,12}"]
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(hosts in prop::collection::vec(any_host(), 0..40)) {
        let list = Hostlist::from_hosts(hosts.clone()).unwrap();
        let text = list.to_string();
        prop_assert_eq!(list.hosts(), &hosts[..]);
        prop_assert_eq!(&text.parse::<Hostlist>().unwrap(), &list, "{}", text);
        prop_assert_eq!(expand_like_flux_core(&text), hosts, "{}", text);
    }

    #[test]
    fn no_text_panics(text in "[ab0-9,\\[\\]é -]{0,30}") {
        if let Ok(list) = text.parse::<Hostlist>() {
            prop_assert_eq!(list.to_string().parse::<Hostlist>().unwrap(), list);
        }
    }
}
