"""Keep large XCom values as blobs."""
