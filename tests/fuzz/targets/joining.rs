//! What is said when a cluster joins.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::FutureExt as _;
use sha2::{Digest as _, Sha256};
use tributary_clock::SeededRng;
use tributary_federation::enrol::message::Request;
use tributary_federation::enrol::token::{JoinToken, TokenSecret};

use super::Target;

/// Whether it is text, or what stands in one, with a checksum that is right.
const AS_TEXT: u8 = 0;

pub(crate) const TOKEN: Target = Target {
    name: "token",
    run: |data| {
        let Some((kind, data)) = data.split_first() else { return };
        let text = if *kind == AS_TEXT {
            String::from_utf8_lossy(data).into_owned()
        } else {
            let checksum = Sha256::digest(data);
            format!("tributary-1.{}", URL_SAFE_NO_PAD.encode([data, &checksum[..4]].concat()))
        };
        match text.parse::<JoinToken>() {
            Ok(token) => {
                let said = format!("{token:?}");
                let again: JoinToken = token.text().parse().unwrap_or_else(|error| panic!("{said}: {error}"));
                assert_eq!(again, token);
                assert!(said.contains("TokenSecret(..)"));
            }
            Err(error) => assert!(error.to_string().len() < 100),
        }
    },
    seeds: || {
        let token = JoinToken {
            id: "abcd2345".to_owned(),
            secret: TokenSecret::generate(&mut SeededRng::new(1)),
            cluster: "east".into(),
            trust_domain: Some("lab".to_owned()),
            endpoints: vec!["203.0.113.7:7956".to_owned()],
            authorities: ["00".repeat(32)].into(),
            expires: "2027-01-01T00:00:00Z".parse().expect("a time"),
        };
        let text = token.text();
        let coded = text.strip_prefix("tributary-1.").expect("every token begins so");
        let bytes = URL_SAFE_NO_PAD.decode(coded).expect("it was encoded so");
        vec![[&[AS_TEXT], text.as_bytes()].concat(), [&[1], &bytes[..bytes.len() - 4]].concat()]
    },
    words: &[
        "tributary-1.",
        "tributary-2.",
        "\\x12 ",
        "\\x32 ",
        "\\x38\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x01",
    ],
};

pub(crate) const ENROLMENT: Target = Target {
    name: "enrolment",
    run: |data| {
        let size = u32::try_from(data.len()).expect("input is short");
        let framed = [&size.to_be_bytes(), data].concat();
        for mut stream in [&framed[..], data] {
            match Request::receive(&mut stream).now_or_never().expect("a slice never waits") {
                Ok(Ok(request)) => {
                    assert!(request.secret_hash.len() == 64);
                    let problem = request.who.check().err().unwrap_or_default();
                    for said in request.names().iter().chain([&problem]) {
                        assert!(said.len() < 400 && !said.contains(char::is_control), "{said:?}");
                    }
                }
                Ok(Err(refused)) => assert!(refused.message.len() < 100),
                Err(_) => {}
            }
        }
    },
    seeds: || {
        let text = |tag: u8, text: &[u8]| {
            let mut field = vec![tag << 3 | 2];
            let mut left = text.len();
            while left >= 128 {
                field.push(left as u8 | 128);
                left >>= 7;
            }
            field.push(left as u8);
            [&field[..], text].concat()
        };
        let pem = format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", "MIIBIjANBgkq".repeat(12));
        let who = [
            text(1, b"west"),
            text(2, b"uid-west"),
            text(3, b"lab"),
            text(4, pem.as_bytes()),
            text(5, b"203.0.113.7:7946"),
        ];
        vec![[text(1, b"abcd2345"), text(2, &[7; 32]), text(3, &who.concat()), vec![32, 128, 1]].concat()]
    },
    words: &["-----BEGIN CERTIFICATE-----\\x0a", "-----END CERTIFICATE-----\\x0a", "MII", "\\x30\\x82"],
};
