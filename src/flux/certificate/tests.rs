use tributary_clock::SeededRng;

use super::*;

/// The pairs in `zmq_curve(7)`.
const MANUAL: [(&str, &str); 2] = [
    ("Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"),
    ("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"),
];

fn text(public: &str, secret: &str) -> String {
    format!("curve\n    public-key = \"{public}\"\n    secret-key = \"{secret}\"\n")
}

fn metadata() -> CertificateMetadata {
    CertificateMetadata {
        name: "lake".into(),
        hostname: "lake-0".into(),
        created: "2026-11-21T10:22:33.456Z".parse().unwrap(),
    }
}

#[test]
fn pairs_of_the_zeromq_manual_are_taken() {
    for (public, secret) in MANUAL {
        let certificate = Certificate::parse(&text(public, secret)).unwrap();
        assert_eq!(certificate.public_key(), public);
        assert_eq!(certificate.expose(), text(public, secret));
    }
}

#[test]
fn the_digest_is_of_the_exact_text() {
    let (public, secret) = MANUAL[0];
    // Computed with sha256sum.
    let digest = Certificate::parse(&text(public, secret)).unwrap().digest();
    assert_eq!(digest.to_string(), "sha256:fb3cc35b0b367cfdc5524006fa179e40f84a68cbf04aa7557e2604d9666164bc");
    let spaced = Certificate::parse(&(text(public, secret) + "\n")).unwrap().digest();
    assert_ne!(digest, spaced);
}

#[test]
fn a_new_certificate_is_the_text_flux_writes() {
    let certificate = Certificate::generate(&mut SeededRng::new(7), &metadata()).unwrap();
    let lines: Vec<&str> = certificate.expose().lines().collect();
    assert_eq!(
        lines[..8],
        [
            "#  ZeroMQ CURVE **Secret** Certificate",
            "#  DO NOT DISTRIBUTE",
            "",
            "metadata",
            "    name = \"lake\"",
            "    keygen.hostname = \"lake-0\"",
            "    keygen.time = \"2026-11-21T10:22:33Z\"",
            "curve",
        ]
    );
    assert_eq!(lines[8], format!("    public-key = \"{}\"", certificate.public_key()));
    assert!(lines[9].starts_with("    secret-key = \"") && lines[9].len() == 59 && lines.len() == 10);
    assert!(certificate.expose().ends_with("\"\n"));
}

#[test]
fn new_certificates_are_valid_and_differ() {
    let mut seen = BTreeSet::new();
    let mut rng = SeededRng::new(1);
    for _ in 0..50 {
        let made = Certificate::generate(&mut rng, &metadata()).unwrap();
        let read = Certificate::parse(made.expose()).unwrap();
        assert_eq!(read.digest(), made.digest());
        assert_eq!(read.public_key(), made.public_key());
        assert!(seen.insert(made.public_key().to_owned()));
    }
}

#[test]
fn what_czmq_wrote_is_taken() {
    let (public, secret) = MANUAL[1];
    let czmq = format!(
        "#   ****  Generated on 2026-02-03 04:05:06 by CZMQ  ****\n#   ZeroMQ CURVE **Secret** Certificate\n\
         #   DO NOT PROVIDE THIS FILE TO OTHER USERS nor change its permissions.\n    \nmetadata\n\
         \x20   name = \"lake\"\n    keygen.hostname = \"lake-0\"\r\n\
         curve\n\tpublic-key=\"{public}\"\n    secret-key = \"{secret}\""
    );
    assert_eq!(Certificate::parse(&czmq).unwrap().public_key(), public);
}

#[test]
fn what_no_broker_would_take_is_refused() {
    use CertificateError as E;
    let (public, secret) = MANUAL[0];
    let good = text(public, secret);
    let meta = |entry: &str| format!("metadata\n    {entry}\n{good}");
    let tail = |tail: &str| format!("{good}{tail}\n");
    // A chunk that begins with # is too large for Z85, but is a padding to the crate.
    let padded = format!("{}#0000", &public[..35]);
    for (text, error) in [
        (String::new(), E::Missing { entry: "public-key" }),
        (text(public, secret).replace("    secret", "#"), E::Missing { entry: "secret-key" }),
        (text(public, MANUAL[1].1), E::Mismatch),
        (text(&public[1..], secret), E::Key { line: 2 }),
        (text(public, &format!("{secret}0")), E::Key { line: 3 }),
        (text(&padded, secret), E::Key { line: 2 }),
        (text(&public.replace('Y', "~"), secret), E::Syntax { line: 2 }),
        (tail("    other-key = \"1\""), E::UnknownKey { line: 4 }),
        (tail(&format!("    public-key = \"{public}\"")), E::Repeated { line: 4 }),
        (meta("name = \"a\"\n    name = \"b\""), E::Repeated { line: 3 }),
        (meta("name = \"a_b\""), E::Syntax { line: 2 }),
        (meta("name = \"a,b\""), E::Syntax { line: 2 }),
        (meta("name = \"a\"b\""), E::Syntax { line: 2 }),
        (meta("name_ = \"a\""), E::Syntax { line: 2 }),
        (meta("name = \""), E::Syntax { line: 2 }),
        (meta("name = a"), E::Syntax { line: 2 }),
        (meta("name"), E::Syntax { line: 2 }),
        (meta(&format!("name = \"{}\"", "a".repeat(250))), E::Syntax { line: 2 }),
        (good.replace("    ", ""), E::Syntax { line: 2 }),
        (format!(" {good}"), E::Syntax { line: 1 }),
        (tail("other"), E::Syntax { line: 4 }),
    ] {
        assert_eq!(Certificate::parse(&text).unwrap_err(), error, "{text}");
    }
}

#[test]
fn names_that_flux_cannot_read_are_refused() {
    for value in ["a_b", "a,b", "a\"", "a\nb", "é", &"a".repeat(201)] {
        let mut bad = metadata();
        bad.hostname = value.into();
        let error = Certificate::generate(&mut SeededRng::new(1), &bad).unwrap_err();
        assert_eq!(error, CertificateError::Metadata { value: value.into() });
    }
}

#[test]
fn nothing_shows_the_secret() {
    let certificate = Certificate::generate(&mut SeededRng::new(3), &metadata()).unwrap();
    let secret = certificate.expose().split('"').nth_back(1).unwrap();
    assert_eq!(secret.len(), KEY_LEN);
    let shown = format!("{certificate:?} {certificate:#?} {:?}", certificate.digest());
    assert!(shown.contains(certificate.public_key()) && !shown.contains(secret), "{shown}");
    let broken = certificate.expose().replace("secret-key", "secret_key");
    let error = Certificate::parse(&broken).unwrap_err();
    assert!(!format!("{error} {error:?}").contains(secret));
}
